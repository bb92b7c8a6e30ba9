-- Charge a request to its tenant's limits, or refuse it and charge nothing: requests and tokens per minute by the
-- generic cell rate algorithm (a minute's worth may come at once), and the tokens of all requests under way.
--
-- KEYS  rates, enqueued
-- ARGV  own id, tokens, limits: requests per minute, tokens per minute, enqueued tokens (0: none); ttl ms, after
--       which a request that was not uncharged is forgotten
-- Returns {ok | requests | tokens | enqueued: the limit that refuses it, retry after ms (-1: never),
--          requests left, ms until all are back, tokens left, ms until all are back}
-- include: clock, enqueued
local MINUTE, SECOND = 60000, 1000
local rates, enqueued = unpack(KEYS)
local own_id, tokens, per_min, tokens_per_min, most_enqueued, ttl_ms = unpack(ARGV)
local now = now_ms()
tokens = tonumber(tokens)

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

local requests, in_tokens = bucket('requests', per_min, 1), bucket('tokens', tokens_per_min, tokens)
local under_way = {field = 'enqueued', limit = tonumber(most_enqueued), wait = 0}
if under_way.limit > 0 and forget_expired(rates, enqueued, now) + tokens > under_way.limit then
  under_way.wait = tokens > under_way.limit and -1 or SECOND
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
  local added = redis.call('ZADD', enqueued, now + ttl_ms, tokens .. ' ' .. own_id)
  if added == 1 then redis.call('HINCRBY', rates, 'enqueued', tokens) end
end
for _, key in ipairs({rates, enqueued}) do keep(key, math.max(2 * MINUTE, ttl_ms)) end
return answer('ok', 0, requests.after or now, in_tokens.after or now, requests, in_tokens)
