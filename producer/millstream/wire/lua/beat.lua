-- A worker's heartbeat: replaces what was there, and lives for its time.
--
-- KEYS  worker
-- ARGV  ttl ms, field, value, field, value, …
-- Returns OK
redis.call('DEL', KEYS[1])  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.status_reply('OK')
