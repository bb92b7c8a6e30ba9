-- Read a queue's metadata; its first user writes it.
--
-- KEYS  meta
-- ARGV  field, value, field, value, …
-- Returns the fields as they are stored
local meta = KEYS[1]
if redis.call('EXISTS', meta) == 0 then
  redis.call('PERSIST', meta)  -- changes nothing: it is not refused at maxmemory, and no write after it is
  redis.call('HSET', meta, unpack(ARGV))
end
return redis.call('HGETALL', meta)
