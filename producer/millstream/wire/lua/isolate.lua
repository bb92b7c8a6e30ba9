-- Record that a running attempt has its engine for itself from now on, or no longer: whoever finds its worker
-- dead knows by that whom to blame. Also what the worker knows of deaths.
--
-- KEYS  job
-- ARGV  attempt, owner, entry, alone '1' or '', died, died alone
-- Returns ok | fenced
-- include: job, deaths
local job_key = KEYS[1]
local attempt, owner, entry, alone, died, died_alone = unpack(ARGV)
local job = read_job(job_key, 'state', 'attempt', 'owner', 'entry', 'died', 'died_alone')
if job.state ~= 'running' or not belongs(job, attempt, owner, entry) then return 'fenced' end

redis.call('PERSIST', job_key)  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', job_key, 'alone', alone == '1' and attempt or '')
raise_deaths(job_key, job, died, died_alone)
return 'ok'
