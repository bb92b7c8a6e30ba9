-- Begin an attempt at a delivered entry. A stale entry (its job gone, ended, or under another entry) is dropped.
-- The same nonce gets the same attempt again: its first reply was lost.
--
-- KEYS  job, tokens, lane
-- ARGV  entry, owner, nonce, publish command, events channel
-- Returns {} when nothing is to be run, else
--         {attempt, last seq, died, cancel asked 0 | 1, submitted ms, first token ms or '', log}
-- include: clock, job, lane
local entry, owner, nonce = ARGV[1], ARGV[2], ARGV[3]
local job = read_job(KEYS[1], 'state', 'entry', 'nonce', 'attempt', 'seq', 'died', 'cancel',
  'submitted_ms', 'admitted_ms', 'first_token_ms')

if not job.state or TERMINAL[job.state] or job.entry ~= entry then
  drop(KEYS[3], entry)
  return {}
end
if not held_by(KEYS[3], entry, owner) then return {} end

local attempt = tonumber(job.attempt)
if job.state ~= 'running' or job.nonce ~= nonce then
  attempt = attempt + 1
  -- The resume marker: from here on the log takes nothing older. Written first, as it may fail at maxmemory.
  local marker = attempt .. '-' .. job.seq
  redis.call('XADD', KEYS[2], marker, 'k', 'm', 'b', '')
  redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', attempt, 'owner', owner, 'nonce', nonce)
  if not job.admitted_ms then redis.call('HSET', KEYS[1], 'admitted_ms', now_ms()) end
  redis.pcall(ARGV[4], ARGV[5], marker .. ' m ')
end
return {attempt, tonumber(job.seq), tonumber(job.died), job.cancel and 1 or 0, tonumber(job.submitted_ms),
  job.first_token_ms or '', redis.call('XRANGE', KEYS[2], '-', '+')}
