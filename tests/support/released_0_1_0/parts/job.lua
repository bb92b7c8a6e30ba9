-- A job's hash: its named fields as a table, each a string, or false where it is not set.
local TERMINAL = {completed = true, failed = true, cancelled = true, expired = true}

local function read_job(key, ...)
  local names = {...}
  local values = redis.call('HMGET', key, unpack(names))
  local job = {}
  for i, name in ipairs(names) do job[name] = values[i] end
  return job
end

-- Whether this attempt is the one that the job belongs to: the fence that every write of a worker passes.
local function belongs(job, attempt, owner, entry)
  return job.attempt == attempt and job.owner == owner and job.entry == entry
end
