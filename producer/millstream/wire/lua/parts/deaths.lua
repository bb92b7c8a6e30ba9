-- Deaths that a job was there for. A worker tells how many it knows of in all, not how many more: repeated or
-- late, it changes nothing. Hashes of older versions have no `died_alone`.
local function raise_deaths(key, job, died, died_alone)
  if tonumber(died) > tonumber(job.died or 0) then redis.call('HSET', key, 'died', died) end
  if tonumber(died_alone) > tonumber(job.died_alone or 0) then redis.call('HSET', key, 'died_alone', died_alone) end
end
