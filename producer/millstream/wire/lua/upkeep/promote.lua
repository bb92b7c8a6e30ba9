-- Move jobs into their lanes: a parked one if a lane has none, so that waiting workers wake up and take the others; and
-- those whose retry is due.
--
-- KEYS  delayed, the prefix of job keys (their ids come out of the sets; one hash tag holds them all), then the
--       keys lane, parked, tenants of each lane
-- ARGV  limit of retries, lane names in the order of their keys
-- Returns the ids moved
-- include: clock, job, refill, damage
local delayed, jobs = unpack(KEYS, 1, 2)
local limit = ARGV[1]
local lanes, moved, now = {}, {}, now_ms()
redis.call('ZREM', delayed, '')  -- changes nothing: it is not refused at maxmemory, and no write after it is
for i = 2, #ARGV do
  local k = 3 * (i - 1)
  local l = {lane = KEYS[k], parked = KEYS[k + 1], tenants = KEYS[k + 2], jobs = jobs}
  lanes[ARGV[i]] = l
  local refilled, refused = refill(l, 1, 1)
  if refused then return refused end
  for _, id in ipairs(refilled) do moved[#moved + 1] = id end
  forget_tenants(l)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, limit)) do
  local key = jobs .. id
  local ok, job = pcall(read_job, key, 'state', 'lane', 'version', 'payload', 'place')
  if not ok and not is_damage(job) then error(job) end
  local l = ok and lanes[job.lane]
  if l and job.state == 'queued' and job.payload and not job.place then  -- else it is gone, damaged or parked
    local entry = redis.call('XADD', l.lane, '*', 'id', id, 'v', job.version, 'b', job.payload)
    redis.call('HSET', key, 'entry', entry)
    redis.call('HDEL', key, 'payload')
    moved[#moved + 1] = id
  end
  redis.call('ZREM', delayed, id)
end
return moved
