-- Move a batch to another status. One that ends it takes the batch off its tenant's enqueued tokens, and lets it
-- expire. May be repeated.
--
-- KEYS  batch, parts, lines, rates, enqueued
-- ARGV  holder, status from which it moves, status to which it moves, ms for which an ended one is kept, fields and
--       values that are written with it
-- Returns the status that the batch has now | lost: another holds it, and nothing was changed
-- include: clock, enqueued, batch
local batch, parts, lines, rates, enqueued = unpack(KEYS)
local holder, from, to, ttl_ms = unpack(ARGV)
local own, status, charge = unpack(redis.call('HMGET', batch, 'holder', 'status', 'charge'))
if own ~= holder then return 'lost' end
if status ~= from then return status end

redis.call('HSET', batch, 'status', to, to .. '_s', math.floor(now_ms() / 1000), unpack(ARGV, 5))
if ENDED[to] then
  if charge ~= '' then take_off(rates, enqueued, charge) end
  redis.call('DEL', lines)
  for _, key in ipairs({batch, parts}) do redis.call('PEXPIRE', key, ttl_ms) end
end
return to
