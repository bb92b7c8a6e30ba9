-- Read a shard's next entries for a consumer, the first lane first, up to a count and a number of bytes. First
-- refills each lane from its parked jobs, up to the same limits. The entries of a lost reply stay pending with the
-- consumer.
--
-- KEYS  the prefix of job keys (the ids come out of `parked`; one hash tag holds them all), then the keys
--       lane, parked, tenants of each lane, in the order in which they are served
-- ARGV  consumer, max entries, max bytes
-- Returns {{number of the lane, entry, fields}, …}
-- include: lane, refill
local jobs = KEYS[1]
local consumer, max_entries, max_bytes = unpack(ARGV)
local taken, room, bytes = {}, tonumber(max_entries), tonumber(max_bytes)
for number = 1, (#KEYS - 1) / 3 do
  local lane = KEYS[3 * number - 1]
  if room > 0 and bytes > 0 then
    refill({lane = lane, parked = KEYS[3 * number], tenants = KEYS[3 * number + 1], jobs = jobs}, room, bytes)
  end
  while room > 0 and bytes > 0 do
    local reply = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', 1, 'STREAMS', lane, '>')
    if not reply then break end
    local entry, fields = unpack(reply[1][2][1])
    for _, text in ipairs(fields) do bytes = bytes - #text end
    room = room - 1
    taken[#taken + 1] = {number, entry, fields}
  end
end
return taken
