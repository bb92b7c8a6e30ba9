-- Whether the caller is to sweep the store of files: one gateway is, once in a while.
--
-- KEYS  store
-- ARGV  field that says when the last sweep was, while ms
-- Returns 1 | 0
-- include: clock
local store = KEYS[1]
local field, while_ms = unpack(ARGV)
local now = now_ms()
local swept_ms = unpack(redis.call('HMGET', store, field))
if swept_ms and now - swept_ms < tonumber(while_ms) then return 0 end
redis.call('HSET', store, field, now)
return 1
