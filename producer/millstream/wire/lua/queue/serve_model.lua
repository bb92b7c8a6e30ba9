-- Record the digest of the model that a shard serves: `start` refuses workers of others from here on. Passes at
-- maxmemory.
--
-- KEYS  model
-- ARGV  digest
-- Returns OK
local model = KEYS[1]
local digest = ARGV[1]
redis.call('HDEL', model, '')  -- changes nothing: it is not refused at maxmemory, and no write after it is
redis.call('HSET', model, 'digest', digest)
return redis.status_reply('OK')
