-- A worker's heartbeat: replaces what was there, and lives for its time.
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
