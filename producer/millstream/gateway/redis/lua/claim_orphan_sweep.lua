-- Whether the caller is to sweep the store of files: one gateway is, once in a while.
--
-- KEYS  store
-- ARGV  while ms
-- Returns 1 | 0
-- include: clock
local store = KEYS[1]
local while_ms = ARGV[1]
local now = now_ms()
local swept_ms = unpack(redis.call('HMGET', store, 'swept_ms'))
if swept_ms and now - swept_ms < tonumber(while_ms) then return 0 end
redis.call('HSET', store, 'swept_ms', now)
return 1
