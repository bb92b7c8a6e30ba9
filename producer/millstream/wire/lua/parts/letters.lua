-- Dead letters are bounded by their number and, as they may hold images, by their bytes: the oldest go, as many as would
-- take what is too much if all had one size. Where large ones follow small ones it is some letters until they fit.
local MOST_DEAD_BYTES = 268435456

local function bury(dead, max_dead, ...)
  local kept = tonumber(max_dead)
  -- Under the rules of an earlier release both are refused, and the number alone counts.
  local count, size = redis.pcall('XLEN', dead), redis.pcall('MEMORY', 'USAGE', dead, 'SAMPLES', 0)
  if type(count) == 'number' and type(size) == 'number' and size > MOST_DEAD_BYTES then
    kept = math.max(1, math.min(kept, math.floor(count * MOST_DEAD_BYTES / size)))
  end
  redis.pcall('XADD', dead, 'MAXLEN', kept, '*', ...)
end
