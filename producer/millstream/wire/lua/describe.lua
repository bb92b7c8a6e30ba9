-- A queue's metadata: written by whoever comes first, read by all.
--
-- KEYS  meta
-- ARGV  field, value, field, value, …
-- Returns the fields as they are stored
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('PERSIST', KEYS[1])  -- changes nothing, and passes at maxmemory: so does all that follows
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return redis.call('HGETALL', KEYS[1])
