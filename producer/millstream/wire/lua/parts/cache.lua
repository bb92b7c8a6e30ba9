-- Keep a job's result for equal requests, at most `most` bytes of them in a shard; the first to expire go first.
--
-- k: keys cache, cache_bytes, and the prefix `cached` of kept results. A member of `cache` is "<bytes> <digest>", its
-- score the time when the result expires. A result that `forget` has deleted counts until then.
local BESIDE = 200  -- bytes of the keys and the member of one result

local function drop_cached(k, member)
  local bytes, digest = member:match('^(%d+) (.*)$')
  redis.call('ZREM', k.cache, member)
  redis.call('DECRBY', k.cache_bytes, bytes)
  redis.call('UNLINK', k.cached .. digest)
end

local function keep_result(k, digest, result, expires_ms, now, most)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', k.cache, '-inf', now, 'LIMIT', 0, 100)) do
    drop_cached(k, member)
  end
  local bytes = #result + BESIDE
  if bytes > most or redis.call('EXISTS', k.cached .. digest) == 1 then return end
  while tonumber(redis.call('GET', k.cache_bytes) or 0) + bytes > most do
    local first = redis.call('ZRANGE', k.cache, 0, 0)[1]
    if first then drop_cached(k, first) else redis.call('DEL', k.cache_bytes) end
  end
  redis.call('HSET', k.cached .. digest, 'result', result)
  redis.call('PEXPIREAT', k.cached .. digest, expires_ms)
  if redis.call('ZADD', k.cache, expires_ms, bytes .. ' ' .. digest) == 1 then
    redis.call('INCRBY', k.cache_bytes, bytes)
  end
  for _, key in ipairs({k.cache, k.cache_bytes}) do redis.call('PEXPIREAT', key, expires_ms) end
end
