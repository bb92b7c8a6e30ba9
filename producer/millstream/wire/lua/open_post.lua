-- Begin a POST, or let a repeated one take over the job of an earlier one of the same path and body whose client has
-- left: it said so, or the gateway that answers it has not been seen for a lease.
--
-- KEYS  posts, replicas
-- ARGV  own id for a new job, queue, replica, repeated '1' or '', patient '1': while others are open, wait for them,
--       window ms, lease ms
-- Returns {new | joined, own id, queue} | {wait}
-- include: clock
local posts, replicas = unpack(KEYS)
local own_id, queue, replica, repeated, patient, window_ms, lease_ms = unpack(ARGV)
local now = now_ms()

local function is_gone(name)
  return tonumber(redis.call('ZSCORE', replicas, name) or 0) + lease_ms < now
end

local function write(id, its_queue)
  redis.call('HSET', posts, id, table.concat({'open', replica, now, its_queue}, ' '))
  redis.call('PEXPIRE', posts, window_ms)
  redis.call('ZADD', replicas, now, replica)
  redis.call('PEXPIRE', replicas, window_ms)
end

if repeated == '1' then
  local others = false
  local rows = redis.call('HGETALL', posts)
  for i = 1, #rows, 2 do
    local state, by, at, its_queue = rows[i + 1]:match('^(%S+) (%S+) (%d+) (.*)$')
    if state and now - at < tonumber(window_ms) then
      if state == 'left' or is_gone(by) then
        write(rows[i], its_queue)
        return {'joined', rows[i], its_queue}
      end
      others = true
    end
  end
  if others and patient == '1' then return {'wait'} end
end
write(own_id, queue)
return {'new', own_id, queue}
