-- Drop a delivered entry that names no job: written by a stranger, there is nobody to answer. A note is kept.
--
-- KEYS  lane, dead
-- ARGV  owner, entry, reason, max dead
-- Returns ok | fenced (the owner does not hold it)
-- include: lane
if not held_by(KEYS[1], ARGV[2], ARGV[1]) then return 'fenced' end
local request = read_entry(KEYS[1], ARGV[2]) or {}
drop(KEYS[1], ARGV[2])
redis.pcall('XADD', KEYS[2], 'MAXLEN', ARGV[4], '*', 'reason', ARGV[3], 'entry', ARGV[2], 'b', request.b or '')
return 'ok'
