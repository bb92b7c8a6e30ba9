-- End a job whose entry was destroyed (XTRIM, XDEL, XADD with MAXLEN), as failed: it is in no lane, no consumer
-- holds it, and it is neither parked nor waiting for a retry. Anything else stays as it is.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, then the keys lane, parked, tenants of each lane
-- ARGV  id, attempt and seq that the result speaks of, result or '' (only ask), ttl ms, publish command, events
--       channel, finished ms as in the result, lane names in the order of their keys
-- Returns lost (it has ended; only asked: it would) | kept
-- include: clock, job, lane, ending
local id = ARGV[1]
local job = read_job(KEYS[1], 'state', 'lane', 'entry', 'attempt', 'seq', 'bytes', 'place')
if job.state ~= 'queued' and job.state ~= 'running' then return 'kept' end
if job.attempt ~= ARGV[2] or job.seq ~= ARGV[3] then return 'kept' end
if redis.call('ZSCORE', KEYS[3], id) then return 'kept' end
local lane
for i = 9, #ARGV do
  local k = 3 * i - 21
  if job.place and redis.call('ZSCORE', KEYS[k + 1], job.place) then return 'kept' end
  if ARGV[i] == job.lane then lane = KEYS[k] end
end
if not lane or not job.entry then return 'kept' end
if job.entry ~= '' and (read_entry(lane, job.entry) or holder(lane, job.entry)) then return 'kept' end
if ARGV[4] == '' then return 'lost' end

local k = {job = KEYS[1], tokens = KEYS[2], delayed = KEYS[3], deadlines = KEYS[4], bytes = KEYS[5],
  publish = ARGV[6], events = ARGV[7]}
job.place = false
end_job(k, id, job, 'failed', ARGV[4], now_ms(), tonumber(ARGV[5]), ARGV[8])
redis.call('HSET', KEYS[1], 'owner', '')  -- so that a last worker's finish is fenced, not "already"
return 'lost'
