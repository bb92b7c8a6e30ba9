-- Raise the counts of deaths with the job. A worker reports totals, so that a repeated or late call changes nothing.
local function raise_deaths(key, job, died, died_alone)
  if tonumber(died) > tonumber(job.died or 0) then redis.call('HSET', key, 'died', died) end
  if tonumber(died_alone) > tonumber(job.died_alone or 0) then redis.call('HSET', key, 'died_alone', died_alone) end
end
