-- Count rows of a batch as written, whose objects are in the store. May be repeated by the holder.
--
-- KEYS  batch, parts, lines
-- ARGV  holder, behind how many parts, completed, failed, prompt tokens, cached tokens, output tokens, expected,
--       agreed, then of each object: part, lines
-- Returns ok | lost: another holds the batch, or there are other parts than the holder knows; nothing was counted
local batch, parts, lines = unpack(KEYS)
local holder, behind, completed, failed, prompt, cached, output, expected, agreed = unpack(ARGV)
if redis.call('HGET', batch, 'holder') ~= holder then return 'lost' end
if redis.call('LINDEX', parts, -1) == ARGV[#ARGV - 1] then return 'ok' end
if redis.call('LLEN', parts) ~= tonumber(behind) then return 'lost' end

for i = 10, #ARGV, 2 do
  redis.call('RPUSH', parts, ARGV[i])
  redis.call('RPUSH', lines, ARGV[i + 1])
end
local counts = {completed = completed, failed = failed, prompt_tokens = prompt, cached_tokens = cached,
  output_tokens = output, expected = expected, agreed = agreed}
for field, count in pairs(counts) do redis.call('HINCRBY', batch, field, count) end
local teller, live = string.match(redis.call('HGET', batch, 'live') or '', '^(%S+) (%d+)$')
if teller == holder then  -- these tokens are counted now
  redis.call('HSET', batch, 'live', string.format('%s %d', holder, math.max(0, live - output)))
end
return 'ok'
