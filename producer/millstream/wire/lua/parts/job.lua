-- Fields of a job's hash as a table, each a string, or false if it is not set.
local TERMINAL = {completed = true, failed = true, cancelled = true, expired = true}

local function read_job(key, ...)
  local names = {...}
  local values = redis.call('HMGET', key, unpack(names))
  local job = {}
  for i, name in ipairs(names) do job[name] = values[i] end
  return job
end

-- Whether the job belongs to this attempt: the fence of every write of a worker.
local function belongs(job, attempt, owner, entry)
  return job.attempt == attempt and job.owner == owner and job.entry == entry
end
