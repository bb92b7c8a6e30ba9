-- Put a part of a batch in the place of one whose object was lost. May be repeated by the holder.
--
-- KEYS  batch, parts
-- ARGV  holder, place from 0, lost part, new part, by how much completed and failed change
-- Returns ok | lost: another holds the batch, or another part is in that place; nothing was changed
local batch, parts = unpack(KEYS)
local holder, place, before, after, completed, failed = unpack(ARGV)
if redis.call('HGET', batch, 'holder') ~= holder then return 'lost' end
local now = redis.call('LINDEX', parts, place)
if now == after then return 'ok' end
if now ~= before then return 'lost' end

redis.call('LSET', parts, place, after)
redis.call('HINCRBY', batch, 'completed', completed)
redis.call('HINCRBY', batch, 'failed', failed)
return 'ok'
