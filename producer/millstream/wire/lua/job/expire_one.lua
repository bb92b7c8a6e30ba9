-- End one job if its deadline has passed and no worker has ended it yet.
--
-- A running job's entry stays in its lane, to which a producer only adds: its worker or a scan drops it.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, parked and tenants of each lane
-- ARGV  id, ttl ms, publish command, events channel, control channel
-- Returns 1 if this call ended it, else 0
-- include: clock, expiry
local job_key, tokens, delayed, deadlines, bytes = unpack(KEYS, 1, 5)
local id, ttl_ms, publish, events, control = unpack(ARGV)
local deadline, now = redis.call('ZSCORE', deadlines, id), now_ms()
if not deadline or tonumber(deadline) > now then return 0 end
local k = {job = job_key, tokens = tokens, delayed = delayed, deadlines = deadlines, bytes = bytes,
  publish = publish, events = events, control = control, parking = {unpack(KEYS, 6)}}
return expire_job(k, {}, id, now, tonumber(ttl_ms)) and 1 or 0
