-- End a job as its worker says: the last delta, the end marker and the result become visible together.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, lane
-- ARGV  id, attempt, owner, entry, state, result, seq, has delta '1' or '', delta, ttl ms,
--       publish command, events channel, times as in the result, each ms or '': admitted, first token, finished (now)
-- Returns ok | already | fenced | gap (the log ends before seq - 1: append what is missing, then finish again)
-- include: clock, job, lane, ending, times
local id, attempt, state, seq = ARGV[1], ARGV[2], ARGV[5], tonumber(ARGV[7])
local job = read_job(KEYS[1], 'state', 'attempt', 'owner', 'entry', 'seq', 'bytes', 'first_token_ms')
local mine = belongs(job, attempt, ARGV[3], ARGV[4])
if mine and TERMINAL[job.state] then return 'already' end
if not mine or job.state ~= 'running' then return 'fenced' end
if seq > job.seq + 1 then return 'gap' end

local k = {job = KEYS[1], tokens = KEYS[2], delayed = KEYS[3], deadlines = KEYS[4], bytes = KEYS[5],
  publish = ARGV[11], events = ARGV[12]}
local now = now_ms()
drop(KEYS[6], ARGV[4])
if ARGV[8] == '1' and seq > tonumber(job.seq) then  -- else its append got through and only the reply was lost
  log(k, attempt .. '-' .. seq, 'd', ARGV[9])
  if not job.first_token_ms then stamp(KEYS[1], '', now) end
  job.seq = seq
end
stamp(KEYS[1], ARGV[13], ARGV[14])
end_job(k, id, job, state, ARGV[6], now, tonumber(ARGV[10]), ARGV[15])
return 'ok'
