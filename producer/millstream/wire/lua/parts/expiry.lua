-- include: job, lane, ending
-- End one job whose deadline has passed. Its text stays in the log. `lanes`: name -> key, of lanes whose entries
-- the caller may drop.
-- A queued job's entry stays where it is: start or reclaim drops it.
local function expire_job(k, lanes, id, now, ttl_ms)
  local job = read_job(k.job, 'state', 'lane', 'entry', 'attempt', 'seq', 'bytes', 'place', 'tenant')
  if not job.state or TERMINAL[job.state] then
    redis.call('ZREM', k.deadlines, id)
    return false
  end
  if job.state == 'running' then
    if lanes[job.lane] then drop(lanes[job.lane], job.entry) end
    redis.pcall(k.publish, k.control, 'cancel ' .. id)
  end
  end_job(k, id, job, 'expired', false, now, ttl_ms)
  return true
end
