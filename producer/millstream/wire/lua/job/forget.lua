-- Delete the hash and the log of a job that has ended, before they expire, and its result that is kept for equal
-- requests.
--
-- KEYS  job, tokens
-- ARGV  prefix of kept results, or '': that one stays
-- Returns forgotten | not_found | the state of a job that has not ended: it stays
-- include: job
local job_key, tokens = unpack(KEYS)
local cached = unpack(ARGV)
local job = read_job(job_key, 'state', 'cached')
local state = job.state
if not state then return 'not_found' end
if not TERMINAL[state] then return state end
redis.call('UNLINK', job_key, tokens)
if job.cached and cached ~= '' then redis.call('UNLINK', cached .. job.cached) end
return 'forgotten'
