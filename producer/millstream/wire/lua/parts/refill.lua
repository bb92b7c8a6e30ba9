-- include: job, window, tenants, damage
-- Parked jobs enter their lane by start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). A job starts at its
-- tenant's last finish, or at the start of the job that entered the lane last, whichever is later; it finishes
-- its cost later. `park` of submit assigns the places, `refill` serves them.
--
-- l: keys lane, parked, tenants, and the prefix `jobs`. A member of `parked`, the job's `place`, is
-- `<arrival, 16 digits> <id>`, its score the start: jobs of one start are served in order of arrival.
local MOST_TENANTS = 4096

-- Move jobs until the lane has `wanted` undelivered entries, or `bytes` were moved. Returns their ids, and the error
-- of a lane that takes none. Passes at maxmemory: a moved job needs no more memory than before.
local function refill(l, wanted, bytes)
  local moved, at = {}, nil
  if redis.call('ZCARD', l.parked) == 0 then return moved end
  redis.call('ZREM', l.parked, '')  -- changes nothing: it is not refused at maxmemory, and no write after it is
  local room = wanted - undelivered(l.lane)
  for _ = 1, 4 do  -- again if places belonged to hashes that are gone or damaged
    local places = {}
    if room > #moved and bytes > 0 then
      places = redis.call('ZRANGE', l.parked, 0, room - #moved - 1, 'WITHSCORES')
    end
    if not places[1] then break end
    for i = 1, #places, 2 do
      if bytes <= 0 then break end
      local place, id = places[i], places[i]:sub(18)
      local ok, job = pcall(read_job, l.jobs .. id, 'version', 'payload', 'place', 'tenant')
      if not ok and not is_damage(job) then error(job) end
      if ok and job.place == place and job.payload and job.version then
        -- First, as it may fail: nothing has changed then.
        local entry = redis.pcall('XADD', l.lane, '*', 'id', id, 'v', job.version, 'b', job.payload)
        if type(entry) == 'table' then return moved, entry end
        redis.call('HSET', l.jobs .. id, 'entry', entry)
        redis.call('HDEL', l.jobs .. id, 'payload', 'place')
        left_place(l.tenants, job.tenant, false)
        moved[#moved + 1], at = id, places[i + 1]
        bytes = bytes - #job.payload
      end
      redis.call('ZREM', l.parked, place)
    end
  end
  if redis.call('ZCARD', l.parked) == 0 then
    redis.call('DEL', l.tenants)
  elseif at then
    redis.call('HSET', l.tenants, '@at', at)
  end
  return moved
end

-- Above a bound, forget tenants that have nothing parked. That forgives each of them at most the cost of one job.
local function forget_tenants(l)
  if redis.call('HLEN', l.tenants) <= MOST_TENANTS + 2 * redis.call('ZCARD', l.parked) then return end
  local all = redis.call('HGETALL', l.tenants)
  for i = 1, #all, 2 do
    if all[i]:sub(1, 1) == '=' and parked_of(all[i + 1]) == 0 then redis.call('HDEL', l.tenants, all[i]) end
  end
end
