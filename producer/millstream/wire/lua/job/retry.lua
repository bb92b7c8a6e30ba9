-- Delay a running job: its payload moves from the lane into the hash until the retry is due.
--
-- KEYS  job, lane, delayed
-- ARGV  id, attempt, owner, entry, delay ms, died, died alone (in all, as far as the worker knows)
-- Returns ok | already | fenced
-- include: clock, job, lane, deaths
local job_key, lane, delayed = unpack(KEYS)
local id, attempt, owner, entry, delay_ms, died, died_alone = unpack(ARGV)
local job = read_job(job_key, 'state', 'attempt', 'owner', 'entry', 'left', 'died', 'died_alone')
if job.state == 'queued' and job.left == attempt .. ' ' .. owner then return 'already' end
if job.state ~= 'running' or not belongs(job, attempt, owner, entry) then return 'fenced' end
local request = read_entry(lane, entry)
if not request then return redis.error_reply('LOST the lane has no entry ' .. entry .. ' of job ' .. id) end

redis.call('XACK', lane, GROUP, entry)  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', job_key, 'state', 'queued', 'payload', request.b, 'entry', '', 'owner', '',
  'left', attempt .. ' ' .. owner)
raise_deaths(job_key, job, died, died_alone)
redis.call('ZADD', delayed, now_ms() + delay_ms, id)
redis.call('XDEL', lane, entry)
return 'ok'
