-- End one job if its deadline has passed and no worker has swept yet.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, lanes
-- ARGV  id, ttl ms, publish command, events channel, control channel, lane names in the order of their keys
-- Returns 1 where this call ended it, else 0
-- include: clock, expiry
local deadline, now = redis.call('ZSCORE', KEYS[4], ARGV[1]), now_ms()
if not deadline or tonumber(deadline) > now then return 0 end
local lanes = {}
for i = 6, #ARGV do lanes[ARGV[i]] = KEYS[i] end
local k = {job = KEYS[1], tokens = KEYS[2], delayed = KEYS[3], deadlines = KEYS[4], bytes = KEYS[5],
  publish = ARGV[3], events = ARGV[4], control = ARGV[5]}
return expire_job(k, lanes, ARGV[1], now, tonumber(ARGV[2])) and 1 or 0
