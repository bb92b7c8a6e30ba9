-- include: log, unpark
-- End a job: write state and result, end marker, counters, and one time to live for hash and log.
--
-- k: keys job, tokens, delayed, deadlines, bytes; channel events; the publish command; `parking`, the keys parked
-- and tenants of all lanes, if the job may be parked.
-- job: fields attempt, seq, bytes, and of a parked one place, tenant. result: false if it ended without its worker.
-- finished_ms: as in the result; nil or '': now.
--
-- PERSIST comes first although it changes nothing: it is not refused at maxmemory, and no write after it is.
local function end_job(k, id, job, state, result, now, ttl_ms, finished_ms)
  local attempt, seq = tonumber(job.attempt), tonumber(job.seq) + 1
  redis.call('PERSIST', k.job)
  redis.call('HSET', k.job, 'state', state, 'seq', seq, 'finished_ms',
    (finished_ms or '') ~= '' and finished_ms or now)
  if result then
    redis.call('HSET', k.job, 'result', result)
  else
    redis.call('HSET', k.job, 'owner', '')  -- so that the last worker's finish is fenced, not "already"
  end
  redis.call('HDEL', k.job, 'payload', 'place', 'cancel')
  if job.place then unpark(k.parking, job.place, job.tenant) end
  redis.pcall('ZREM', k.delayed, id)
  redis.pcall('ZREM', k.deadlines, id)
  redis.pcall('DECRBY', k.bytes, job.bytes)
  log(k, attempt .. '-' .. seq, 'e', state)
  redis.pcall('PEXPIREAT', k.tokens, now + ttl_ms)
  redis.call('PEXPIREAT', k.job, now + ttl_ms)
end
