-- A gateway says that it still answers requests of a tenant.
--
-- KEYS  replicas
-- ARGV  replica, window ms
-- include: clock
local now = now_ms()
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'ok'
