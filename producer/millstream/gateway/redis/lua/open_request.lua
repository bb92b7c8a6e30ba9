-- Begin a POST, or let a repeated one take over the job of an earlier one of the same path and body whose client has
-- left: it said so, or the gateway that answers it has not been seen for a lease.
--
-- KEYS  posts, replicas
-- ARGV  own id for a new job, queue, replica, repeated '1' or '', patient '1': while others are open, wait for them,
--       window ms: how long ago it may have left; lease ms; how long to keep it in ms
-- Returns {new | joined, own id, queue} | {wait}
-- include: clock
local posts, replicas = unpack(KEYS)
local own_id, queue, replica, repeated, patient, window_ms, lease_ms, keep_ms = unpack(ARGV)
local now = now_ms()

-- When its client left; nil while somebody answers it.
local function left_at(state, by, at)
  if state == 'left' then return tonumber(at) end
  local seen = tonumber(redis.call('ZSCORE', replicas, by) or 0)
  return seen + lease_ms < now and seen or nil
end

local function write(id, its_queue)
  redis.call('HSET', posts, id, table.concat({'open', replica, now, its_queue}, ' '))
  redis.call('PEXPIRE', posts, keep_ms)
  redis.call('ZADD', replicas, now, replica)
  redis.call('PEXPIRE', replicas, window_ms)
end

if repeated == '1' then
  local others = false
  local rows = redis.call('HGETALL', posts)
  for i = 1, #rows, 2 do
    local state, by, at, its_queue = rows[i + 1]:match('^(%S+) (%S+) (%d+) (.*)$')
    if state then
      local left = left_at(state, by, at)
      if left and now - left < tonumber(window_ms) then
        write(rows[i], its_queue)
        return {'joined', rows[i], its_queue}
      end
      others = others or not left
    end
  end
  if others and patient == '1' then return {'wait'} end
end
write(own_id, queue)
return {'new', own_id, queue}
