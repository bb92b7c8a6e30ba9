-- Write a file's record, and put it behind all others of its tenant: no two have the same score. May be repeated.
--
-- KEYS  files, file
-- ARGV  file id, when it expires in Unix ms (0: never), fields and values of its record
-- Returns nothing
local files, file = unpack(KEYS)
local file_id, expires_ms = unpack(ARGV)
local time = redis.call('TIME')
local score = time[1] * 1000000 + time[2]
local last = redis.call('ZRANGE', files, -1, -1, 'WITHSCORES')[2]
if last and tonumber(last) >= score then score = tonumber(last) + 1 end

redis.call('ZADD', files, 'NX', string.format('%d', score), file_id)
redis.call('HSET', file, unpack(ARGV, 3))
if expires_ms ~= '0' then redis.call('PEXPIREAT', file, expires_ms) end
