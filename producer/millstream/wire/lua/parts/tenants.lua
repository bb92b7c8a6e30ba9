-- Tenants that have jobs parked beside a lane, in a hash that exists while jobs are parked: `@n` arrivals so far;
-- `@at` the start of the job that was served last; `=<tenant>` "<finish> <jobs parked>".

-- The leading number of a field; 0 if it is not set.
local function leading(text)
  return tonumber((text or '0'):match('^%d+')) or 0
end

local function parked_of(text)
  return tonumber((text or ''):match(' (%d+)$')) or 0
end

-- Count one job less for a tenant. If it was the tenant's last one and `ended` instead of being served, the tenant
-- is forgotten: otherwise its cancelled jobs would count as served.
local function left_place(tenants, tenant, ended)
  local value = redis.pcall('HMGET', tenants, '=' .. (tenant or ''))[1]
  if not value then return end
  local parked = parked_of(value) - 1
  if parked <= 0 and ended then
    redis.call('HDEL', tenants, '=' .. tenant)
  else
    redis.call('HSET', tenants, '=' .. tenant, string.format('%.0f %d', leading(value), math.max(parked, 0)))
  end
end
