-- Cancel a job: one that waits ends at once, a running one's worker is told.
-- A waiting job's entry stays in its lane: start or reclaim drops it. A parked job has none.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, parked and tenants of each lane
-- ARGV  id, ttl ms, publish command, events channel, control channel
-- Returns cancelled | requested | terminal | not_found
-- include: clock, job, ending
local id = ARGV[1]
local job = read_job(KEYS[1], 'state', 'attempt', 'seq', 'bytes', 'place', 'tenant')
if not job.state then return 'not_found' end
if job.state == 'cancelled' then return 'cancelled' end
if TERMINAL[job.state] then return 'terminal' end

if job.state == 'running' then
  redis.call('PERSIST', KEYS[1])  -- first: it passes at maxmemory, and so does all that follows
  redis.call('HSET', KEYS[1], 'cancel', 1)
  redis.pcall(ARGV[3], ARGV[5], 'cancel ' .. id)
  return 'requested'
end
local k = {job = KEYS[1], tokens = KEYS[2], delayed = KEYS[3], deadlines = KEYS[4], bytes = KEYS[5],
  publish = ARGV[3], events = ARGV[4], parking = {unpack(KEYS, 6)}}
end_job(k, id, job, 'cancelled', false, now_ms(), tonumber(ARGV[2]))
return 'cancelled'
