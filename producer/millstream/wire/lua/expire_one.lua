-- End one job if its deadline has passed and no worker has swept yet.
--
-- A running job's entry stays in its lane, to which a producer only adds: its worker drops it, or whoever scans.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, parked and tenants of each lane
-- ARGV  id, ttl ms, publish command, events channel, control channel
-- Returns 1 where this call ended it, else 0
-- include: clock, expiry
local deadline, now = redis.call('ZSCORE', KEYS[4], ARGV[1]), now_ms()
if not deadline or tonumber(deadline) > now then return 0 end
local k = {job = KEYS[1], tokens = KEYS[2], delayed = KEYS[3], deadlines = KEYS[4], bytes = KEYS[5],
  publish = ARGV[3], events = ARGV[4], control = ARGV[5], parking = {unpack(KEYS, 6)}}
return expire_job(k, {}, ARGV[1], now, tonumber(ARGV[2])) and 1 or 0
