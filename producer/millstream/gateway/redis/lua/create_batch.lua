-- Write the record of a new batch, and put it behind all others of its tenant: no two have the same score. May be
-- repeated.
--
-- KEYS  batch, batches, rates, enqueued
-- ARGV  batch id, completion window in s, charge: the batch as it stands in enqueued, or '', for how many ms it lasts
--       from now on, fields and values of its record
-- Returns created | exists
-- include: clock, enqueued
local batch, batches, rates, enqueued = unpack(KEYS)
local batch_id, window_s, charge, lasts_ms = unpack(ARGV)
local time = redis.call('TIME')
local score = time[1] * 1000000 + time[2]
if redis.call('EXISTS', batch) == 1 then return 'exists' end
local last = redis.call('ZREVRANGE', batches, 0, 0, 'WITHSCORES')[2]
if last and tonumber(last) >= score then score = tonumber(last) + 1 end

redis.call('HSET', batch, 'status', 'validating', 'created_s', time[1], 'expires_s', time[1] + window_s,
  'charge', charge, 'holder', '', 'until_ms', 0, unpack(ARGV, 5))
redis.call('ZADD', batches, string.format('%d', score), batch_id)
if charge ~= '' then
  redis.call('ZADD', enqueued, 'XX', now_ms() + lasts_ms, charge)
  for _, key in ipairs({rates, enqueued}) do keep(key, tonumber(lasts_ms)) end
end
return 'created'
