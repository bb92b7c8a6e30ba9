-- Deaths that a job was there for. A worker reports how many it knows of in all, not how many more: repeated or
-- late, it changes nothing.
local function raise_deaths(key, job, died, died_alone)
  if tonumber(died) > tonumber(job.died or 0) then redis.call('HSET', key, 'died', died) end
  if tonumber(died_alone) > tonumber(job.died_alone or 0) then redis.call('HSET', key, 'died_alone', died_alone) end
end
