-- Return a page of dead letters, the newest first. Requests are cut, so that the page stays small.
--
-- KEYS  dead
-- ARGV  start ('+', or '(' and the last entry of the page before), count, most bytes of each request
-- Returns {{entry, bytes of the request, {field, value, …}}, …}
local dead = KEYS[1]
local start, limit, most_bytes = unpack(ARGV)
local page = {}
for i, found in ipairs(redis.call('XREVRANGE', dead, start, '-', 'COUNT', limit)) do
  local fields, size = found[2], 0
  for j = 1, #fields, 2 do
    if fields[j] == 'b' then
      size = #fields[j + 1]
      fields[j + 1] = fields[j + 1]:sub(1, tonumber(most_bytes))
    end
  end
  page[i] = {found[1], size, fields}
end
return page
