-- Take a request that has ended off its tenant's count of enqueued tokens.
--
-- KEYS  rates, enqueued
-- ARGV  own id, tokens as charged
-- include: enqueued
local rates, enqueued = unpack(KEYS)
local own_id, tokens = unpack(ARGV)
take_off(rates, enqueued, tokens .. ' ' .. own_id)
return 'ok'
