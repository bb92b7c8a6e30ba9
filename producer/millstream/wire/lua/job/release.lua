-- Release a job: the next scan may take it at once. Only the deaths that the worker knows of are charged.
--
-- KEYS  job, lane
-- ARGV  id, attempt or '' (delivered, not known to have started), owner, entry, publish command, control channel,
--       died, died alone (in all, as far as the worker knows)
-- Returns ok | already | fenced
-- include: job, lane, deaths
local job_key, lane = unpack(KEYS)
local id, attempt, owner, entry, publish, control, died, died_alone = unpack(ARGV)
local job = read_job(job_key, 'state', 'attempt', 'owner', 'entry', 'left', 'died', 'died_alone')
local held = holder(lane, entry)
local stale = not job.state or TERMINAL[job.state] or job.entry ~= entry

if attempt ~= '' then
  if job.state == 'queued' and job.left == attempt .. ' ' .. owner then return 'already' end
  if job.state ~= 'running' or not belongs(job, attempt, owner, entry) then return 'fenced' end
elseif not held then
  return stale and 'already' or 'fenced'
elseif held[2] ~= owner then
  return held[2] == RELEASED and 'already' or 'fenced'
elseif stale then
  drop(lane, entry)
  return 'ok'
end

redis.call('PERSIST', job_key)  -- first: it passes at maxmemory, and so does all that follows
if held then
  -- A day idle, so that scanners in any language find it overdue. The delivery is not counted.
  redis.call('XCLAIM', lane, GROUP, RELEASED, 0, entry, 'IDLE', 86400000,
    'RETRYCOUNT', math.max(held[4] - 1, 0), 'JUSTID')
end
if job.state == 'running' and job.owner == owner then  -- also if only the reply of its start was lost
  redis.call('HSET', job_key, 'state', 'queued', 'owner', '', 'left', job.attempt .. ' ' .. owner)
  raise_deaths(job_key, job, died, died_alone)
end
redis.pcall(publish, control, 'released')
return 'ok'
