-- Delete what is kept of a job that has ended, its hash and its log, before their time to live is over.
--
-- KEYS  job, tokens
-- Returns forgotten | not_found | the state of a job that has not ended: it stays
-- include: job
local job_key, tokens = unpack(KEYS)
local state = read_job(job_key, 'state').state
if not state then return 'not_found' end
if not TERMINAL[state] then return state end
redis.call('UNLINK', job_key, tokens)
return 'forgotten'
