-- When a job entered the batch and when its first token came, by its worker's word; '' where that has none.
local function stamp(key, admitted_ms, first_token_ms)
  if admitted_ms ~= '' then redis.call('HSET', key, 'admitted_ms', admitted_ms) end
  if first_token_ms ~= '' then redis.call('HSET', key, 'first_token_ms', first_token_ms) end
end
