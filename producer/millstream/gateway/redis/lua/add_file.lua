-- Write a file's record, and put it behind all others of its tenant: no two have the same score. Under an
-- Idempotency-Key that is known already nothing is written. May be repeated.
--
-- KEYS  files, file, and once of an upload that has an Idempotency-Key
-- ARGV  file id, when it expires in Unix ms (0: never), digest of the upload, ttl of its Idempotency-Key in ms (both
--       unused without a key), fields and values of the record
-- Returns {new | same | conflict, id of the key's file}
local files, file, once = unpack(KEYS)
local file_id, expires_ms, digest, ttl_ms = unpack(ARGV)
if once then
  local known, its_file = unpack(redis.call('HMGET', once, 'digest', 'file'))
  if known and its_file ~= file_id then
    return {known == digest and 'same' or 'conflict', its_file or ''}
  end
end
local time = redis.call('TIME')
local score = time[1] * 1000000 + time[2]
local last = redis.call('ZRANGE', files, -1, -1, 'WITHSCORES')[2]
if last and tonumber(last) >= score then score = tonumber(last) + 1 end

redis.call('ZADD', files, 'NX', string.format('%d', score), file_id)
redis.call('HSET', file, unpack(ARGV, 5))
if expires_ms ~= '0' then redis.call('PEXPIREAT', file, expires_ms) end
if once then
  redis.call('HSET', once, 'digest', digest, 'queue', '', 'file', file_id)
  redis.call('PEXPIRE', once, ttl_ms)
end
return {'new', file_id}
