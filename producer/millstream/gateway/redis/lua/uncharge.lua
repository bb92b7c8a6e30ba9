-- Take requests that have ended off their tenant's count of enqueued tokens.
--
-- KEYS  rates, enqueued
-- ARGV  the requests as they stand in enqueued
-- include: enqueued
local rates, enqueued = unpack(KEYS)
for _, member in ipairs(ARGV) do take_off(rates, enqueued, member) end
return 'ok'
