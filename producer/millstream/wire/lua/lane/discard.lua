-- Drop a delivered entry that names no job: a foreign program wrote it, nobody waits for a result. A record is kept.
--
-- KEYS  lane, dead
-- ARGV  owner, entry, reason, max dead
-- Returns ok | fenced (the owner does not hold it)
-- include: lane, letters
local lane, dead = unpack(KEYS)
local owner, entry, reason, max_dead = unpack(ARGV)
if not held_by(lane, entry, owner) then return 'fenced' end
local request = read_entry(lane, entry) or {}
drop(lane, entry)
bury(dead, max_dead, 'reason', reason, 'entry', entry, 'b', request.b or '')
return 'ok'
