-- A gateway says that it still answers requests of a tenant.
--
-- KEYS  replicas
-- ARGV  replica, window ms
-- include: clock
local replicas = KEYS[1]
local replica, window_ms = unpack(ARGV)
local now = now_ms()
redis.call('ZADD', replicas, now, replica)
redis.call('ZREMRANGEBYSCORE', replicas, '-inf', now - window_ms)
redis.call('PEXPIRE', replicas, window_ms)
return 'ok'
