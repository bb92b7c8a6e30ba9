-- Dead-letter a job: it ends as failed, and its request is kept in the bounded `dead` stream.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, lane, dead
-- ARGV  id, attempt, owner, entry, reason, result, ttl ms, max dead, publish command, events channel,
--       times as in the result, each ms or '': compiled, admitted, first token, finished (now)
-- Returns ok | already | fenced
-- include: clock, job, lane, ending, times, letters
local job_key, tokens, delayed, deadlines, bytes, lane, dead = unpack(KEYS)
local id, attempt, owner, entry, reason, result, ttl_ms, max_dead, publish, events, compiled_ms, admitted_ms,
  first_token_ms, finished_ms = unpack(ARGV)
local job = read_job(job_key, 'state', 'attempt', 'owner', 'entry', 'seq', 'bytes', 'lane', 'version', 'died')
local mine = belongs(job, attempt, owner, entry)
if mine and TERMINAL[job.state] then return 'already' end
if not mine or job.state ~= 'running' then return 'fenced' end

local k = {job = job_key, tokens = tokens, delayed = delayed, deadlines = deadlines, bytes = bytes,
  publish = publish, events = events}
local request = read_entry(lane, entry) or {}
drop(lane, entry)
stamp(job_key, compiled_ms, admitted_ms, first_token_ms)
end_job(k, id, job, 'failed', result, now_ms(), tonumber(ttl_ms), finished_ms)
bury(dead, max_dead, 'id', id, 'lane', job.lane, 'v', job.version,
  'reason', reason, 'attempts', attempt, 'died', job.died, 'b', request.b or '')
return 'ok'
