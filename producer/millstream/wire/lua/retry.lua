-- Park a running job until its delay is over: its payload moves from the lane into the hash.
--
-- KEYS  job, lane, delayed
-- ARGV  id, attempt, owner, entry, delay ms, died, died alone (in all, as far as the worker knows)
-- Returns ok | already | fenced
-- include: clock, job, lane, deaths
local id, entry = ARGV[1], ARGV[4]
local job = read_job(KEYS[1], 'state', 'attempt', 'owner', 'entry', 'left', 'died', 'died_alone')
if job.state == 'queued' and job.left == ARGV[2] .. ' ' .. ARGV[3] then return 'already' end
if job.state ~= 'running' or not belongs(job, ARGV[2], ARGV[3], entry) then return 'fenced' end
local request = read_entry(KEYS[2], entry)
if not request then return redis.error_reply('LOST the lane has no entry ' .. entry .. ' of job ' .. id) end

redis.call('XACK', KEYS[2], GROUP, entry)  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', KEYS[1], 'state', 'queued', 'payload', request.b, 'entry', '', 'owner', '',
  'left', ARGV[2] .. ' ' .. ARGV[3])
raise_deaths(KEYS[1], job, ARGV[6], ARGV[7])
redis.call('ZADD', KEYS[3], now_ms() + ARGV[5], id)
redis.call('XDEL', KEYS[2], entry)
return 'ok'
