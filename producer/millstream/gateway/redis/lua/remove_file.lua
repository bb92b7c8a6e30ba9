-- Remove a file's record, and its place among its tenant's files.
--
-- KEYS  files, file
-- ARGV  file id
-- Returns 1 | 0: there was no record
local files, file = unpack(KEYS)
local file_id = ARGV[1]
redis.call('ZREM', files, file_id)
return redis.call('DEL', file)
