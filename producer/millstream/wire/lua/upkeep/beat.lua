-- Store a worker's heartbeat: it replaces the one before, and expires.
--
-- KEYS  worker
-- ARGV  ttl ms, field, value, field, value, …
-- Returns OK
local worker = KEYS[1]
local ttl_ms = ARGV[1]
redis.call('DEL', worker)  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', worker, unpack(ARGV, 2))
redis.call('PEXPIRE', worker, ttl_ms)
return redis.status_reply('OK')
