-- Take a request that has ended off its tenant's count of enqueued tokens.
--
-- KEYS  rates, enqueued
-- ARGV  own id, tokens as charged
-- include: enqueued
take_off(KEYS[1], KEYS[2], ARGV[2] .. ' ' .. ARGV[1])
return 'ok'
