-- Entries of a lane and their holders.
local GROUP, RELEASED = 'workers', 'released'

-- {entry, owner, idle ms, deliveries} of a delivered entry; nil if nobody holds it.
local function holder(lane, entry)
  local reply = redis.pcall('XPENDING', lane, GROUP, entry, entry, 1)
  if not reply.err then return reply[1] end
  if reply.err:find('NOGROUP', 1, true) then return nil end
  return redis.call('XPENDING', lane, GROUP, entry, entry, 1)[1]  -- any other error ends the script
end

local function held_by(lane, entry, owner)
  local held = holder(lane, entry)
  return held and held[2] == owner
end

-- The entry's fields as a table; nil if the entry is gone.
local function read_entry(lane, entry)
  local found = redis.call('XRANGE', lane, entry, entry)[1]
  if not found then return nil end
  local fields = {}
  for i = 1, #found[2], 2 do fields[found[2][i]] = found[2][i + 1] end
  return fields
end

-- For delivered entries only: XDEL of an undelivered one makes the group's lag unknown.
local function drop(lane, entry)
  redis.call('XACK', lane, GROUP, entry)
  redis.call('XDEL', lane, entry)
end
