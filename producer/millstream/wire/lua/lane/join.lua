-- Create the consumer groups that are missing, from the beginning of the lanes, so that jobs submitted before the
-- first worker count; and register a consumer. Passes at maxmemory.
--
-- KEYS  lanes
-- ARGV  consumer, or '' for none
-- Returns nothing
-- include: lane
local consumer = ARGV[1]
for _, lane in ipairs(KEYS) do
  redis.call('XDEL', lane, '0-0')  -- changes nothing: it is not refused at maxmemory, and no write after it is
  local joined = consumer ~= '' and redis.pcall('XGROUP', 'CREATECONSUMER', lane, GROUP, consumer)
  if type(joined) ~= 'number' then
    local made = redis.pcall('XGROUP', 'CREATE', lane, GROUP, '0', 'MKSTREAM')
    if made.err and not made.err:find('BUSYGROUP', 1, true) then return made end
    if consumer ~= '' then redis.call('XGROUP', 'CREATECONSUMER', lane, GROUP, consumer) end
  end
end
