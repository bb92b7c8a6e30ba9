-- Begin an attempt at a delivered entry. A stale entry (its job gone, ended, or under another entry) is dropped.
-- The same nonce gets the same attempt again: its first reply was lost. At maxmemory only one with force_at_maxmemory
-- begins. A worker of a model that the shard does not serve begins nothing. The output of another model is deleted:
-- the log begins anew.
--
-- KEYS  job, tokens, lane, model
-- ARGV  entry, owner, nonce, publish command, events channel, force_at_maxmemory '1' or '', seed: stored by the first
--       start, digest of the worker's model or '': unknown
-- Returns {} when nothing is to be run, {digest of the served model} when the worker's is another one, else
--         {attempt, last seq, died, died alone, cancel asked 0 | 1, submitted ms, started ms (of the first attempt),
--          compiled ms or '', admitted ms or '', first token ms or '', seed, log}
-- include: clock, job, lane, model
local job_key, tokens, lane, model = unpack(KEYS)
local entry, owner, nonce, publish, events, force, first_seed, digest = unpack(ARGV)
local job = read_job(job_key, 'state', 'entry', 'nonce', 'attempt', 'seq', 'died', 'died_alone',
  'cancel', 'submitted_ms', 'started_ms', 'compiled_ms', 'admitted_ms', 'first_token_ms', 'seed', 'model_digest')

if not job.state or TERMINAL[job.state] or job.entry ~= entry then
  drop(lane, entry)
  return {}
end
if not held_by(lane, entry, owner) then return {} end
local served = redis.call('HGET', model, 'digest')
if is_other_model(served, digest) then return {served} end

local attempt, seed = tonumber(job.attempt), job.seed or first_seed
if job.state ~= 'running' or job.nonce ~= nonce then
  attempt = attempt + 1
  -- HDEL changes nothing: it is not refused at maxmemory, and no write after it is.
  if force == '1' then redis.call('HDEL', job_key, '') end
  local anew = is_other_model(job.model_digest, digest)
  if anew then job.seq = '0' end
  -- The resume marker: from here on the log takes nothing older. Written first, as it may fail at maxmemory.
  local marker = attempt .. '-' .. job.seq
  if anew then
    redis.call('XADD', tokens, 'MAXLEN', 1, marker, 'k', 'm', 'b', digest)  -- with it the log begins anew
    redis.call('HDEL', job_key, 'compiled_ms', 'admitted_ms', 'first_token_ms')
    job.compiled_ms, job.admitted_ms, job.first_token_ms = nil, nil, nil
  else
    redis.call('XADD', tokens, marker, 'k', 'm', 'b', digest)
  end
  redis.call('HSET', job_key, 'state', 'running', 'attempt', attempt, 'owner', owner, 'nonce', nonce,
    'seed', seed, 'seq', job.seq, 'model_digest', digest)
  if not job.started_ms then
    job.started_ms = now_ms()
    redis.call('HSET', job_key, 'started_ms', job.started_ms)
  end
  redis.pcall(publish, events, marker .. ' m ' .. digest)
end
if digest ~= '' and not served then redis.pcall('HSET', model, 'digest', digest) end
return {attempt, tonumber(job.seq), tonumber(job.died), tonumber(job.died_alone or 0), job.cancel and 1 or 0,
  tonumber(job.submitted_ms), tonumber(job.started_ms or 0), job.compiled_ms or '', job.admitted_ms or '',
  job.first_token_ms or '', seed, redis.call('XRANGE', tokens, '-', '+')}
