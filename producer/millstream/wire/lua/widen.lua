-- A worker that takes more versions than the queue's metadata says widens the window; nobody ever narrows it.
--
-- KEYS  meta (there already: `describe` comes first)
-- ARGV  lowest version taken, highest version taken
-- Returns the fields as they are stored
local meta = KEYS[1]
local lowest, highest = unpack(ARGV)
redis.call('PERSIST', meta)  -- first: it passes at maxmemory, and so does all that follows
local low, high = unpack(redis.call('HMGET', meta, 'version_min', 'version_max'))
if low and tonumber(lowest) < tonumber(low) then redis.call('HSET', meta, 'version_min', lowest) end
if high and tonumber(highest) > tonumber(high) then redis.call('HSET', meta, 'version_max', highest) end
return redis.call('HGETALL', meta)
