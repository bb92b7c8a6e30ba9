-- Record that a running attempt has its engine for itself from now on, or no longer: whoever finds its worker
-- dead knows by that whom to blame. Also what the worker knows of deaths.
--
-- KEYS  job
-- ARGV  attempt, owner, entry, alone '1' or '', died, died alone
-- Returns ok | fenced
-- include: job, deaths
local job = read_job(KEYS[1], 'state', 'attempt', 'owner', 'entry', 'died', 'died_alone')
if job.state ~= 'running' or not belongs(job, ARGV[1], ARGV[2], ARGV[3]) then return 'fenced' end

redis.call('PERSIST', KEYS[1])  -- first: it passes at maxmemory, and so does all that follows
redis.call('HSET', KEYS[1], 'alone', ARGV[4] == '1' and ARGV[1] or '')
raise_deaths(KEYS[1], job, ARGV[5], ARGV[6])
return 'ok'
