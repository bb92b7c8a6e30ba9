-- End jobs whose deadline has passed, the most overdue first.
--
-- KEYS  delayed, deadlines, bytes, the prefixes of job and of token log keys (the ids come out of the set; one
--       hash tag holds them all), lanes
-- ARGV  limit, ttl ms, publish command, prefix of events channels, control channel, lane names in order of keys
-- Returns the ids ended
-- include: clock, expiry
local lanes, ended, now = {}, {}, now_ms()
for i = 6, #ARGV do lanes[ARGV[i]] = KEYS[i] end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local k = {job = KEYS[4] .. id, tokens = KEYS[5] .. id, delayed = KEYS[1], deadlines = KEYS[2], bytes = KEYS[3],
    publish = ARGV[3], events = ARGV[4] .. id, control = ARGV[5]}
  if expire_job(k, lanes, id, now, tonumber(ARGV[2])) then ended[#ended + 1] = id end
end
return ended
