-- include: lane
-- A lane holds a window of undelivered entries, which are served in their order: so many, or of so many tokens, as a
-- newcomer waits behind them. Further jobs are parked beside it: see refill.
local WINDOW = 128
local WINDOW_TOKENS = 4096

local function field(row, name)
  for i = 1, #row, 2 do
    if row[i] == name then return row[i + 1] end
  end
end

-- The same by listing all consumers, for users with the rules of a release that did not list groups.
local function pending_of_all(lane)
  local consumers = redis.pcall('XINFO', 'CONSUMERS', lane, GROUP)
  if consumers.err then
    if consumers.err:find('NOGROUP', 1, true) then return 0 end
    return redis.call('XINFO', 'CONSUMERS', lane, GROUP)  -- any other error ends the script
  end
  local count = 0
  for _, consumer in ipairs(consumers) do count = count + field(consumer, 'pending') end
  return count
end

-- How many entries consumers hold: the server's own count, which takes as long for any number of them. Not XPENDING,
-- which shows entries: producers count the lane, too, and may not read them.
local function pending(lane)
  local groups = redis.pcall('XINFO', 'GROUPS', lane)
  if groups.err then return pending_of_all(lane) end
  for _, group in ipairs(groups) do
    if field(group, 'name') == GROUP then return field(group, 'pending') end
  end
  return 0
end

local function undelivered(lane)
  local count = redis.call('XLEN', lane)
  return count == 0 and 0 or count - pending(lane)
end

-- Whether a job of this cost is parked, if it is submitted now: jobs before it are taken to cost as much.
local function has_window(lane, parked, cost)
  if redis.call('ZCARD', parked) > 0 then return true end
  local window = math.max(1, math.min(WINDOW, math.floor(WINDOW_TOKENS / cost)))
  return redis.call('XLEN', lane) >= window and undelivered(lane) >= window
end
