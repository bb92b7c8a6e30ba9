-- Charge a request to its tenant's limits, or refuse it and charge nothing: requests and tokens per minute by the
-- generic cell rate algorithm (a minute's worth may come at once), and the tokens of all requests under way, each once.
--
-- KEYS  rates, enqueued, seen
-- ARGV  id, tokens, limits: requests per minute, tokens per minute, enqueued tokens (0: none); ttl ms, after which a
--       request that was not uncharged is forgotten; the gateway's own clock in ms, which nobody sets
-- Returns {ok | requests | tokens | enqueued: the limit that refuses it, retry after ms (-1: never),
--          requests left, ms until all are back, tokens left, ms until all are back}
-- include: clock, enqueued
local SECOND, MINUTE, DAY = 1000, 60000, 86400000
local rates, enqueued, seen = unpack(KEYS)
local id, tokens, per_min, tokens_per_min, most_enqueued, ttl_ms, gateway_ms = unpack(ARGV)
local now, member = now_ms(), tokens .. ' ' .. id
tokens = tonumber(tokens)

-- By how much the server's clock was set forward since this gateway charged the tenant, unless the buckets were moved
-- since by another. A second is less than what a call may take.
local function set_forward_ms()
  local then_ms, gateway_then_ms = unpack(redis.call('HMGET', seen, 'server_ms', 'gateway_ms'))
  if not then_ms then return 0 end
  local ahead = (now - then_ms) - (gateway_ms - gateway_then_ms)
  local moved_ms = tonumber(redis.call('HGET', rates, 'moved_ms') or 0)
  return ahead > SECOND and moved_ms < then_ms + ahead and ahead or 0
end

-- The server's clock may have been set: forward, it would fill the buckets at once; back, it would leave them empty for
-- as long as it was ahead.
local function move_buckets()
  local ahead = set_forward_ms()
  for _, field in ipairs({'requests', 'tokens'}) do
    local full = tonumber(redis.call('HGET', rates, field) or 0)
    if full > 0 and (ahead > 0 or full > now + MINUTE) then
      redis.call('HSET', rates, field, string.format('%.3f', math.min(full + ahead, now + MINUTE)))
    end
  end
  redis.call('HSET', rates, 'moved_ms', now)
  redis.call('HSET', seen, 'server_ms', now, 'gateway_ms', gateway_ms)
  redis.call('PEXPIRE', seen, DAY)
  keep(rates, DAY)
end

-- The bucket of one limit: when it would be full again after this charge, and how long that is too late.
local function bucket(field, limit, cost)
  local b = {field = field, limit = tonumber(limit), before = now}
  if b.limit == 0 then return b end
  b.before = math.max(now, tonumber(redis.call('HGET', rates, field) or 0))
  b.after = b.before + cost * MINUTE / b.limit
  b.wait = cost > b.limit and -1 or math.max(0, math.ceil(b.after - now - MINUTE))
  return b
end

local function left(b, full_ms)
  if b.limit == 0 then return 0, 0 end
  return math.max(0, math.floor((MINUTE - (full_ms - now)) * b.limit / MINUTE + 1e-6)), math.ceil(full_ms - now)
end

local function answer(outcome, wait, requests_full, tokens_full, requests, in_tokens)
  local r, r_ms = left(requests, requests_full)
  local t, t_ms = left(in_tokens, tokens_full)
  return {outcome, wait, r, r_ms, t, t_ms}
end

move_buckets()
local requests, in_tokens = bucket('requests', per_min, 1), bucket('tokens', tokens_per_min, tokens)
local under_way = {field = 'enqueued', limit = tonumber(most_enqueued), wait = 0}
if under_way.limit > 0 then
  local others = forget_expired(rates, enqueued, now)
  local known = redis.call('ZSCORE', enqueued, member)
  if not known and others + tokens > under_way.limit then
    under_way.wait = tokens > under_way.limit and -1 or SECOND
  end
end

-- The limit that no wait helps, or else the one with the longest wait.
local worst
for _, b in ipairs({requests, in_tokens, under_way}) do
  if b.limit > 0 and b.wait ~= 0 and (not worst or b.wait == -1 or (worst.wait ~= -1 and b.wait > worst.wait)) then
    worst = b
  end
end
if worst then
  return answer(worst.field, worst.wait, requests.before, in_tokens.before, requests, in_tokens)
end

for _, b in ipairs({requests, in_tokens}) do
  if b.limit > 0 then redis.call('HSET', rates, b.field, string.format('%.3f', b.after)) end
end
if under_way.limit > 0 then
  local added = redis.call('ZADD', enqueued, now + ttl_ms, member)
  if added == 1 then redis.call('HINCRBY', rates, 'enqueued', tokens) end
  for _, key in ipairs({rates, enqueued}) do keep(key, tonumber(ttl_ms)) end
end
return answer('ok', 0, requests.after or now, in_tokens.after or now, requests, in_tokens)
