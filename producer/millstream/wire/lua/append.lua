-- Append the next delta to a running job's token log, and publish it.
--
-- KEYS  job, tokens
-- ARGV  attempt, owner, entry, seq, body, publish command, events channel ('' where nobody streams), and with the
--       first delta: admitted ms or '', first token ms or '' (now)
-- Returns {ok | duplicate | gap | fenced | cancelled, last seq}
-- include: clock, job, times
local job = read_job(KEYS[1], 'state', 'attempt', 'owner', 'entry', 'seq', 'cancel', 'first_token_ms')
local last = tonumber(job.seq or 0)
if job.state ~= 'running' or not belongs(job, ARGV[1], ARGV[2], ARGV[3]) then return {'fenced', last} end
if job.cancel then return {'cancelled', last} end

local seq = tonumber(ARGV[4])
if seq <= last then return {'duplicate', last} end
if seq > last + 1 then return {'gap', last} end

local id = ARGV[1] .. '-' .. seq
redis.call('XADD', KEYS[2], id, 'k', 'd', 'b', ARGV[5])
redis.call('HSET', KEYS[1], 'seq', seq)
if not job.first_token_ms then stamp(KEYS[1], ARGV[8], ARGV[9] ~= '' and ARGV[9] or now_ms()) end
if ARGV[7] ~= '' then redis.pcall(ARGV[6], ARGV[7], id .. ' d ' .. ARGV[5]) end
return {'ok', seq}
