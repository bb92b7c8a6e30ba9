-- Remember a POST by its Idempotency-Key.
--
-- KEYS  once
-- ARGV  digest of path and body, queue, ttl ms
-- Returns {new | same | conflict, queue}
local once = KEYS[1]
local digest, queue, ttl_ms = unpack(ARGV)
local known, its_queue = unpack(redis.call('HMGET', once, 'digest', 'queue'))
if known then return {known == digest and 'same' or 'conflict', its_queue} end
redis.call('HSET', once, 'digest', digest, 'queue', queue)
redis.call('PEXPIRE', once, ttl_ms)
return {'new', queue}
