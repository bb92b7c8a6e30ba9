-- Give a job back untouched: whoever scans next may take it at once, and nothing is charged.
--
-- KEYS  job, lane
-- ARGV  id, attempt or '' (delivered, not known to have started), owner, entry, publish command, control channel
-- Returns ok | already | fenced
-- include: job, lane
local attempt, owner, entry = ARGV[2], ARGV[3], ARGV[4]
local job = read_job(KEYS[1], 'state', 'attempt', 'owner', 'entry', 'left')
local held = holder(KEYS[2], entry)
local stale = not job.state or TERMINAL[job.state] or job.entry ~= entry

if attempt ~= '' then
  if job.state == 'queued' and job.left == attempt .. ' ' .. owner then return 'already' end
  if job.state ~= 'running' or not belongs(job, attempt, owner, entry) then return 'fenced' end
elseif not held then
  return stale and 'already' or 'fenced'
elseif held[2] ~= owner then
  return held[2] == RELEASED and 'already' or 'fenced'
elseif stale then
  drop(KEYS[2], entry)
  return 'ok'
end

redis.call('PERSIST', KEYS[1])  -- first: it passes at maxmemory, and so does all that follows
if held then
  -- A day idle, so that scanners in any language find it overdue. The delivery is taken back from the count.
  redis.call('XCLAIM', KEYS[2], GROUP, RELEASED, 0, entry, 'IDLE', 86400000,
    'RETRYCOUNT', math.max(held[4] - 1, 0), 'JUSTID')
end
if job.state == 'running' and job.owner == owner then  -- also where only the reply of its start was lost
  redis.call('HSET', KEYS[1], 'state', 'queued', 'owner', '', 'left', job.attempt .. ' ' .. owner)
end
redis.pcall(ARGV[5], ARGV[6], 'released')
return 'ok'
