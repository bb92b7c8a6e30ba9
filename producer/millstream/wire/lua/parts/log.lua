-- Store and publish one entry of a token log, in this order. A failure must not undo the script's main write:
-- hence pcall.
local function log(k, id, kind, body)
  redis.pcall('XADD', k.tokens, id, 'k', kind, 'b', body)
  redis.pcall(k.publish, k.events, id .. ' ' .. kind .. ' ' .. body)
end
