-- End a POST of this replica: its client has `left` and a repeated one may join; or it is `gone` for good, unless
-- another replica, or this one for another client, has taken it over since.
--
-- KEYS  posts
-- ARGV  own id, replica, how: left | answered | abandoned (only one that was left and not joined)
-- Returns ok | taken: it is another's now, and nothing was changed
-- include: clock
local posts = KEYS[1]
local own_id, replica, how = unpack(ARGV)
local state, by, _, queue = (redis.call('HGET', posts, own_id) or ''):match('^(%S+) (%S+) (%d+) (.*)$')
if state and by ~= replica then return 'taken' end
if how == 'left' then
  if state ~= 'open' then return 'taken' end
  redis.call('HSET', posts, own_id, table.concat({'left', replica, now_ms(), queue}, ' '))
elseif how == 'abandoned' and state == 'open' then
  return 'taken'
else
  redis.call('HDEL', posts, own_id)
end
return 'ok'
