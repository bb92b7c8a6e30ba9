-- Delete the hash and the log of a job that has ended, before they expire.
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
