-- Take the lease of a batch that nobody holds, or whose holder has not renewed it. Whoever held it before can write
-- nothing more: the holder's name fences, and not a counter, which could come again on a server that lost writes.
--
-- KEYS  batch
-- ARGV  holder, new for each time that a batch is taken; lease ms
-- Returns {taken, ms until its time is over} | {held, ms until the lease ends} | {ended} | {gone}: there is no such
--         batch
-- include: clock, batch
local batch = KEYS[1]
local holder, lease_ms = unpack(ARGV)
local now = now_ms()
local status, before, until_ms, expires_s =
  unpack(redis.call('HMGET', batch, 'status', 'holder', 'until_ms', 'expires_s'))
if not status then return {'gone'} end
if ENDED[status] then return {'ended'} end
if before ~= '' and before ~= holder and tonumber(until_ms) > now then return {'held', until_ms - now} end

redis.call('HSET', batch, 'holder', holder, 'until_ms', now + lease_ms)
return {'taken', expires_s * 1000 - now}
