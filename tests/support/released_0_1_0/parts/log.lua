-- One entry of a token log, stored and published in the same order. What fails here must not undo the write
-- that the script is about: hence pcall.
local function log(k, id, kind, body)
  redis.pcall('XADD', k.tokens, id, 'k', kind, 'b', body)
  redis.pcall(k.publish, k.events, id .. ' ' .. kind .. ' ' .. body)
end
