-- Record whether a running attempt has its engine for itself: whoever finds its worker dead then knows which job
-- to charge. Also records the deaths that the worker knows of.
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
