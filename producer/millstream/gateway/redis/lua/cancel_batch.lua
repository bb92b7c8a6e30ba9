-- Ask for the end of a batch; its holder notices when it renews its lease.
--
-- KEYS  batch
-- Returns the status that the batch has now | not_found
-- include: clock
local batch = KEYS[1]
local status = redis.call('HGET', batch, 'status')
if not status then return 'not_found' end
if status ~= 'validating' and status ~= 'in_progress' then return status end

redis.call('HSET', batch, 'status', 'cancelling', 'cancelling_s', math.floor(now_ms() / 1000))
return 'cancelling'
