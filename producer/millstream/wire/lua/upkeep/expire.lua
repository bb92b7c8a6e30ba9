-- End jobs whose deadline has passed, the most overdue first.
--
-- KEYS  delayed, deadlines, bytes, the prefixes of job and of token log keys (the ids come out of the set; one
--       hash tag holds them all), lanes, parked and tenants of each lane
-- ARGV  limit, ttl ms, publish command, prefix of events channels, control channel, lane names in order of keys
-- Returns the ids ended
-- include: clock, expiry, damage
local delayed, deadlines, bytes, jobs, logs = unpack(KEYS, 1, 5)
local limit, ttl_ms, publish, events, control = unpack(ARGV, 1, 5)
local lanes, ended, now = {}, {}, now_ms()
local parking = {unpack(KEYS, 1 + #ARGV)}
for i = 6, #ARGV do lanes[ARGV[i]] = KEYS[i] end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, limit)) do
  local k = {job = jobs .. id, tokens = logs .. id, delayed = delayed, deadlines = deadlines, bytes = bytes,
    publish = publish, events = events .. id, control = control, parking = parking}
  local ok, done = pcall(expire_job, k, lanes, id, now, tonumber(ttl_ms))
  if not ok and not is_damage(done) then error(done) end
  if not ok then redis.call('ZREM', k.deadlines, id) end  -- it must not keep others from their end
  if ok and done then ended[#ended + 1] = id end
end
return ended
