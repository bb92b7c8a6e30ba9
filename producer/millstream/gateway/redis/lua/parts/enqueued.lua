-- Take requests off the count of enqueued tokens.
local function take_off(rates, enqueued, member)
  if redis.call('ZREM', enqueued, member) == 0 then return end
  redis.call('HINCRBY', rates, 'enqueued', -tonumber(member:match('^%d+')))
end

-- Those whose gateway did not come back to them. Returns the tokens of all that are left.
local function forget_expired(rates, enqueued, now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', enqueued, '-inf', now)) do take_off(rates, enqueued, member) end
  if redis.call('ZCARD', enqueued) == 0 then redis.call('HDEL', rates, 'enqueued') end
  return tonumber(redis.call('HGET', rates, 'enqueued') or 0)
end

-- Keep a key for at least so long.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end
