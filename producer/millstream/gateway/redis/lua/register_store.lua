-- Which store of files all gateways use: the one that is named first.
--
-- KEYS  store
-- ARGV  id of the caller's store, or '' if it has none
-- Returns {id, or '' if there is none, since when it is known in Unix ms}
-- include: clock
local store = KEYS[1]
local id = ARGV[1]
local known, since_ms = unpack(redis.call('HMGET', store, 'id', 'since_ms'))
if known then return {known, since_ms} end
if id == '' then return {'', '0'} end
since_ms = now_ms()
redis.call('HSET', store, 'id', id, 'since_ms', since_ms)
return {id, tostring(since_ms)}
