-- Store the worker's times of a job's compiled format, admission and first token; '' stores none.
local function stamp(key, compiled_ms, admitted_ms, first_token_ms)
  if compiled_ms ~= '' then redis.call('HSET', key, 'compiled_ms', compiled_ms) end
  if admitted_ms ~= '' then redis.call('HSET', key, 'admitted_ms', admitted_ms) end
  if first_token_ms ~= '' then redis.call('HSET', key, 'first_token_ms', first_token_ms) end
end
