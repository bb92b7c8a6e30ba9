-- Remove a consumer that holds nothing (XGROUP DELCONSUMER destroys what is pending).
--
-- KEYS  lane
-- ARGV  consumer
-- Returns 1 if it is gone, 0 if it holds entries
-- include: lane
local lane = KEYS[1]
local consumer = ARGV[1]
local reply = redis.pcall('XPENDING', lane, GROUP, '-', '+', 1, consumer)
if reply.err and reply.err:find('NOGROUP', 1, true) then return 1 end
if reply.err or reply[1] then return 0 end
redis.call('XACK', lane, GROUP, '0-0')  -- changes nothing: it passes at maxmemory, and so does what follows
redis.call('XGROUP', 'DELCONSUMER', lane, GROUP, consumer)
return 1
