-- End a job whose entry was destroyed (XTRIM, XDEL, XADD with MAXLEN), as failed: it is in no lane, no consumer
-- holds it, and it is neither parked nor waiting for a retry. Anything else stays as it is.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, then the keys lane, parked, tenants of each lane
-- ARGV  id, attempt and seq that the result describes, result or '' (only check), ttl ms, publish command, events
--       channel, finished ms as in the result, lane names in the order of their keys
-- Returns lost (it has ended; if only checked: it would end) | kept
-- include: clock, job, lane, ending
local job_key, tokens, delayed, deadlines, bytes = unpack(KEYS, 1, 5)
local id, attempt, seq, result, ttl_ms, publish, events, finished_ms = unpack(ARGV, 1, 8)
local job = read_job(job_key, 'state', 'lane', 'entry', 'attempt', 'seq', 'bytes', 'place')
if job.state ~= 'queued' and job.state ~= 'running' then return 'kept' end
if job.attempt ~= attempt or job.seq ~= seq then return 'kept' end
if redis.call('ZSCORE', delayed, id) then return 'kept' end
local lane
for i = 9, #ARGV do
  local k = 3 * i - 21
  if job.place and redis.call('ZSCORE', KEYS[k + 1], job.place) then return 'kept' end
  if ARGV[i] == job.lane then lane = KEYS[k] end
end
if not lane or not job.entry then return 'kept' end
if job.entry ~= '' and (read_entry(lane, job.entry) or holder(lane, job.entry)) then return 'kept' end
if result == '' then return 'lost' end

local k = {job = job_key, tokens = tokens, delayed = delayed, deadlines = deadlines, bytes = bytes,
  publish = publish, events = events}
job.place = false
end_job(k, id, job, 'failed', result, now_ms(), tonumber(ttl_ms), finished_ms)
redis.call('HSET', job_key, 'owner', '')  -- so that the last worker's finish is fenced, not "already"
return 'lost'
