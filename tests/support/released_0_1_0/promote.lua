-- Move jobs whose retry is due back to the end of their lane.
--
-- KEYS  delayed, the prefix of job keys (their ids come out of the set; one hash tag holds them all), lanes
-- ARGV  limit, lane names in the order of their keys
-- Returns the ids moved
-- include: clock, job
local lanes, moved = {}, {}
for i = 2, #ARGV do lanes[ARGV[i]] = KEYS[i + 1] end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, ARGV[1])) do
  local key = KEYS[2] .. id
  local job = read_job(key, 'state', 'lane', 'version', 'payload')
  if job.state == 'queued' and job.payload then
    local entry = redis.call('XADD', lanes[job.lane], '*', 'id', id, 'v', job.version, 'b', job.payload)
    redis.call('HSET', key, 'entry', entry)
    redis.call('HDEL', key, 'payload')
    moved[#moved + 1] = id
  end
  redis.call('ZREM', KEYS[1], id)
end
return moved
