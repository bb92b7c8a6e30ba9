-- Renew the leases of entries that the owner still holds; return those that it lost, and those to cancel.
-- An entry whose job has ended, or runs under another entry, is lost and dropped from the lane.
--
-- KEYS  lane, job, job, …
-- ARGV  owner, id, entry, id, entry, …
-- Returns {{lost ids}, {ids to cancel}}
-- include: job, lane
local lane = KEYS[1]
local owner = ARGV[1]
local lost, cancelled = {}, {}
for i = 2, #KEYS do
  local id, entry = ARGV[2 * i - 2], ARGV[2 * i - 1]
  local job = read_job(KEYS[i], 'state', 'entry', 'cancel')
  if not held_by(lane, entry, owner) then
    lost[#lost + 1] = id
  elseif not job.state or TERMINAL[job.state] or job.entry ~= entry then
    drop(lane, entry)
    lost[#lost + 1] = id
  else
    redis.call('XCLAIM', lane, GROUP, owner, 0, entry, 'JUSTID')
    if job.cancel then cancelled[#cancelled + 1] = id end
  end
end
return {lost, cancelled}
