-- Dead-letter a job: it ends as failed, and its request is kept in the bounded `dead` stream.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, lane, dead
-- ARGV  id, attempt, owner, entry, reason, result, ttl ms, max dead, publish command, events channel,
--       times as in the result, each ms or '': admitted, first token, finished (now)
-- Returns ok | already | fenced
-- include: clock, job, lane, ending, times
local id, attempt, entry = ARGV[1], ARGV[2], ARGV[4]
local job = read_job(KEYS[1], 'state', 'attempt', 'owner', 'entry', 'seq', 'bytes', 'lane', 'version', 'died')
local mine = belongs(job, attempt, ARGV[3], entry)
if mine and TERMINAL[job.state] then return 'already' end
if not mine or job.state ~= 'running' then return 'fenced' end

local k = {job = KEYS[1], tokens = KEYS[2], delayed = KEYS[3], deadlines = KEYS[4], bytes = KEYS[5],
  publish = ARGV[9], events = ARGV[10]}
local request = read_entry(KEYS[6], entry) or {}
drop(KEYS[6], entry)
stamp(KEYS[1], ARGV[11], ARGV[12])
end_job(k, id, job, 'failed', ARGV[6], now_ms(), tonumber(ARGV[7]), ARGV[13])
redis.pcall('XADD', KEYS[7], 'MAXLEN', ARGV[8], '*', 'id', id, 'lane', job.lane, 'v', job.version,
  'reason', ARGV[5], 'attempts', attempt, 'died', job.died, 'b', request.b or '')
return 'ok'
