-- Cancel a job: a waiting one ends at once, the worker of a running one is notified.
-- A waiting job's entry stays in its lane: start or reclaim drops it. A parked job has none.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, parked and tenants of each lane
-- ARGV  id, ttl ms, publish command, events channel, control channel
-- Returns cancelled | requested | terminal | not_found
-- include: clock, job, ending
local job_key, tokens, delayed, deadlines, bytes = unpack(KEYS, 1, 5)
local id, ttl_ms, publish, events, control = unpack(ARGV)
local job = read_job(job_key, 'state', 'attempt', 'seq', 'bytes', 'place', 'tenant')
if not job.state then return 'not_found' end
if job.state == 'cancelled' then return 'cancelled' end
if TERMINAL[job.state] then return 'terminal' end

if job.state == 'running' then
  redis.call('PERSIST', job_key)  -- first: it passes at maxmemory, and so does all that follows
  redis.call('HSET', job_key, 'cancel', 1)
  redis.pcall(publish, control, 'cancel ' .. id)
  return 'requested'
end
local k = {job = job_key, tokens = tokens, delayed = delayed, deadlines = deadlines, bytes = bytes,
  publish = publish, events = events, parking = {unpack(KEYS, 6)}}
end_job(k, id, job, 'cancelled', false, now_ms(), tonumber(ttl_ms))
return 'cancelled'
