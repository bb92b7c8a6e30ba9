-- Add a worker's versions to the window in the queue's metadata, which is never narrowed, and keep its model's name.
--
-- KEYS  meta (exists: `open_queue` comes first)
-- ARGV  lowest version taken, highest version taken, model or ''
-- Returns the fields as they are stored
local meta = KEYS[1]
local lowest, highest, model = unpack(ARGV)
redis.call('PERSIST', meta)  -- first: it passes at maxmemory, and so does all that follows
local low, high = unpack(redis.call('HMGET', meta, 'version_min', 'version_max'))
if low and tonumber(lowest) < tonumber(low) then redis.call('HSET', meta, 'version_min', lowest) end
if high and tonumber(highest) > tonumber(high) then redis.call('HSET', meta, 'version_max', highest) end
if model ~= '' then redis.call('HSET', meta, 'model', model) end
return redis.call('HGETALL', meta)
