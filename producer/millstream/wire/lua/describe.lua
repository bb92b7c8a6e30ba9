-- A queue's metadata: written by whoever comes first, read by all.
--
-- KEYS  meta
-- ARGV  field, value, field, value, …
-- Returns the fields as they are stored
local meta = KEYS[1]
if redis.call('EXISTS', meta) == 0 then
  redis.call('PERSIST', meta)  -- changes nothing, and passes at maxmemory: so does all that follows
  redis.call('HSET', meta, unpack(ARGV))
end
return redis.call('HGETALL', meta)
