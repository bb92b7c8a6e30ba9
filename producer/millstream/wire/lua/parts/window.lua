-- include: lane
-- A lane holds a window of undelivered entries, which are served in their order: so many, or of so many tokens, as a
-- newcomer waits behind them. Further jobs are parked beside it: see refill.
local WINDOW = 128
local WINDOW_TOKENS = 4096

local function undelivered(lane)
  local count = redis.call('XLEN', lane)
  if count == 0 then return 0 end
  -- Not XPENDING, which shows entries: producers count the lane, too, and may not read them.
  local consumers = redis.pcall('XINFO', 'CONSUMERS', lane, GROUP)
  if consumers.err then
    if consumers.err:find('NOGROUP', 1, true) then return count end
    return redis.call('XINFO', 'CONSUMERS', lane, GROUP)  -- any other error ends the script
  end
  for _, consumer in ipairs(consumers) do
    for i = 1, #consumer, 2 do
      if consumer[i] == 'pending' then count = count - consumer[i + 1] end
    end
  end
  return count
end

-- Whether a job of this cost is parked, if it is submitted now: jobs before it are taken to cost as much.
local function has_window(lane, parked, cost)
  if redis.call('ZCARD', parked) > 0 then return true end
  local window = math.max(1, math.min(WINDOW, math.floor(WINDOW_TOKENS / cost)))
  return redis.call('XLEN', lane) >= window and undelivered(lane) >= window
end
