-- Append the next delta to a running job's token log, and publish it.
--
-- KEYS  job, tokens
-- ARGV  attempt, owner, entry, seq, body, publish command, events channel ('' if nobody streams), and with the
--       first delta: compiled ms or '', admitted ms or '', first token ms or '' (now)
-- Returns {ok | duplicate | gap | fenced | cancelled, last seq}
-- include: clock, job, times
local job_key, tokens = unpack(KEYS)
local attempt, owner, entry, seq, body, publish, events, compiled_ms, admitted_ms, first_token_ms = unpack(ARGV)
local job = read_job(job_key, 'state', 'attempt', 'owner', 'entry', 'seq', 'cancel', 'first_token_ms')
local last = tonumber(job.seq or 0)
if job.state ~= 'running' or not belongs(job, attempt, owner, entry) then return {'fenced', last} end
if job.cancel then return {'cancelled', last} end

seq = tonumber(seq)
if seq <= last then return {'duplicate', last} end
if seq > last + 1 then return {'gap', last} end

local id = attempt .. '-' .. seq
redis.call('XADD', tokens, id, 'k', 'd', 'b', body)
redis.call('HSET', job_key, 'seq', seq)
if not job.first_token_ms then
  stamp(job_key, compiled_ms, admitted_ms, first_token_ms ~= '' and first_token_ms or now_ms())
end
if events ~= '' then redis.pcall(publish, events, id .. ' d ' .. body) end
return {'ok', seq}
