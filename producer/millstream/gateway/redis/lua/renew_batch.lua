-- Renew the lease of a batch, or give it back.
--
-- KEYS  batch
-- ARGV  holder, lease ms; 0: give it back; output tokens of rows that are not counted yet
-- Returns {held, status, ms until the batch's time is over} | {lost}: another holds it, or there is no such batch
-- include: clock
local batch = KEYS[1]
local holder, lease_ms, live = unpack(ARGV)
local now = now_ms()
local own, status, expires_s = unpack(redis.call('HMGET', batch, 'holder', 'status', 'expires_s'))
if own ~= holder then return {'lost'} end

redis.call('HSET', batch, 'until_ms', now + lease_ms, 'live', holder .. ' ' .. live)
return {'held', status, expires_s * 1000 - now}
