-- Take over entries whose owner was seen overdue. An entry that has moved on is left alone; a released one is free
-- at once. A running attempt ends, and is charged if `died` is set; as alone, if `isolate` has recorded that.
--
-- KEYS  lane, the prefix of job keys (the ids come out of the entries; one hash tag holds them all)
-- ARGV  owner, min idle ms, died '1' or '', entry, owner seen, entry, owner seen, …
-- Returns {{entry, deliveries, fields}, …}
-- include: job, lane
local lane, jobs = unpack(KEYS)
local owner, min_idle_ms, died = unpack(ARGV, 1, 3)
min_idle_ms = tonumber(min_idle_ms)
local taken = {}
for i = 4, #ARGV, 2 do
  local entry, seen = ARGV[i], ARGV[i + 1]
  local held = holder(lane, entry)
  if held and held[2] == seen and (seen == RELEASED or held[3] >= min_idle_ms) then
    local request = read_entry(lane, entry)
    local key = jobs .. (request and request.id or '')
    local job = read_job(key, 'state', 'entry', 'attempt', 'alone')
    if not request or not job.state or TERMINAL[job.state] or job.entry ~= entry then
      drop(lane, entry)
    else
      -- Without JUSTID: the count of deliveries also covers workers that die before they have read the payload.
      local claimed = redis.call('XCLAIM', lane, GROUP, owner, 0, entry)[1]
      if job.state == 'running' then
        redis.call('HSET', key, 'state', 'queued', 'owner', '')
        if died == '1' and seen ~= RELEASED then
          redis.call('HINCRBY', key, 'died', 1)
          if job.alone == job.attempt then redis.call('HINCRBY', key, 'died_alone', 1) end
        end
      end
      taken[#taken + 1] = {entry, held[4] + 1, claimed[2]}
    end
  end
end
return taken
