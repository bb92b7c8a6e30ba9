-- Queue a job under its id, once.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, the lane, every other lane
-- ARGV  id, lane name, version, payload, digest, deadline ms or '', stream '1' or '', requeued from or '',
--       max entries, max bytes
-- Returns {accepted | exists | conflict | full, state or '', entries, held bytes}
-- include: job
local job = read_job(KEYS[1], 'state', 'digest')
local entries = redis.call('ZCARD', KEYS[3])
for i = 6, #KEYS do entries = entries + redis.call('XLEN', KEYS[i]) end
local held = tonumber(redis.call('GET', KEYS[5]) or 0)

if job.state then
  if job.digest ~= ARGV[5] then return {'conflict', job.state, entries, held} end
  -- A write, so that the caller's WAIT covers the submit whose reply was lost.
  redis.call('HINCRBY', KEYS[1], 'submits', 1)
  return {'exists', job.state, entries, held}
end
if entries >= tonumber(ARGV[9]) or held + #ARGV[4] > tonumber(ARGV[10]) then
  return {'full', '', entries, held}
end

local entry = redis.call('XADD', KEYS[6], '*', 'id', ARGV[1], 'v', ARGV[3], 'b', ARGV[4])
redis.call('DEL', KEYS[2])  -- a log that outlived its hash would refuse the new job's entries
redis.call('HSET', KEYS[1], 'state', 'queued', 'lane', ARGV[2], 'version', ARGV[3], 'digest', ARGV[5],
  'entry', entry, 'owner', '', 'attempt', 0, 'seq', 0, 'died', 0, 'submits', 1, 'bytes', #ARGV[4],
  'stream', ARGV[7], 'submitted_ms', entry:match('^%d+'))
if ARGV[6] ~= '' then redis.call('ZADD', KEYS[4], ARGV[6], ARGV[1]) end
if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'requeued_from', ARGV[8]) end
held = redis.call('INCRBY', KEYS[5], #ARGV[4])
return {'accepted', 'queued', entries + 1, held}
