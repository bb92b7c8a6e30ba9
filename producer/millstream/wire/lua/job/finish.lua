-- End a job with its worker's result: last delta, end marker and result become visible together.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, lane, cache, cache bytes
-- ARGV  id, attempt, owner, entry, state, result, seq, has delta '1' or '', delta, ttl ms,
--       publish command, events channel, times as in the result, each ms or '': compiled, admitted, first token,
--       finished (now); digest of the key under which the result is kept for equal requests, or '', prefix of such
--       results, most bytes of them
-- Returns ok | already | fenced | gap (the log ends before seq - 1: append what is missing, then finish again)
-- include: clock, job, lane, ending, times, cache
local job_key, tokens, delayed, deadlines, bytes, lane, cache, cache_bytes = unpack(KEYS)
local id, attempt, owner, entry, state, result, seq, has_delta, delta, ttl_ms, publish, events, compiled_ms,
  admitted_ms, first_token_ms, finished_ms, digest, cached, most_cached = unpack(ARGV)
seq = tonumber(seq)
local job = read_job(job_key, 'state', 'attempt', 'owner', 'entry', 'seq', 'bytes', 'first_token_ms')
local mine = belongs(job, attempt, owner, entry)
if mine and TERMINAL[job.state] then return 'already' end
if not mine or job.state ~= 'running' then return 'fenced' end
if seq > job.seq + 1 then return 'gap' end

local k = {job = job_key, tokens = tokens, delayed = delayed, deadlines = deadlines, bytes = bytes,
  publish = publish, events = events}
local now = now_ms()
drop(lane, entry)
if has_delta == '1' and seq > tonumber(job.seq) then  -- else it was appended and only the reply was lost
  log(k, attempt .. '-' .. seq, 'd', delta)
  if not job.first_token_ms then stamp(job_key, '', '', now) end
  job.seq = seq
end
stamp(job_key, compiled_ms, admitted_ms, first_token_ms)
end_job(k, id, job, state, result, now, tonumber(ttl_ms), finished_ms)
if digest ~= '' then
  redis.pcall('HSET', job_key, 'cached', digest)
  pcall(keep_result, {cache = cache, cache_bytes = cache_bytes, cached = cached}, digest, result, now + ttl_ms, now,
    tonumber(most_cached))
end
return 'ok'
