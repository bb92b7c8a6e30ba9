-- Store a worker's heartbeat: it replaces the one before, under either key, and expires. Adds when it was sent, and
-- for how long it holds.
--
-- KEYS  where it stands now, where it may have stood: `worker` and `loading` of the worker, or the other way round
-- ARGV  ttl ms, field, value, field, value, …
-- Returns OK
-- include: clock
local now_at, before_at = unpack(KEYS)
local ttl_ms = ARGV[1]
redis.call('DEL', now_at, before_at)  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', now_at, unpack(ARGV, 2))
redis.call('HSET', now_at, 'sent_ms', string.format('%.0f', now_ms()), 'ttl_ms', ttl_ms)
redis.call('PEXPIRE', now_at, ttl_ms)
return redis.status_reply('OK')
