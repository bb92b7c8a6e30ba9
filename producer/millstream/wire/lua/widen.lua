-- A worker that takes more versions than the queue's metadata says widens the window; nobody ever narrows it.
--
-- KEYS  meta (there already: `describe` comes first)
-- ARGV  lowest version taken, highest version taken
-- Returns the fields as they are stored
redis.call('PERSIST', KEYS[1])  -- first: it passes at maxmemory, and so does all that follows
local low, high = unpack(redis.call('HMGET', KEYS[1], 'version_min', 'version_max'))
if low and tonumber(ARGV[1]) < tonumber(low) then redis.call('HSET', KEYS[1], 'version_min', ARGV[1]) end
if high and tonumber(ARGV[2]) > tonumber(high) then redis.call('HSET', KEYS[1], 'version_max', ARGV[2]) end
return redis.call('HGETALL', KEYS[1])
