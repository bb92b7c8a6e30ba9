-- Queue a job under its id, once: in its lane, or parked beside it where the lane has its window.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, then the keys lane, parked, tenants of each lane, the job's first
-- ARGV  id, lane name, version, payload, digest, deadline ms or '', stream '1' or '', requeued from or '',
--       max entries, max bytes, tenant, cost in tokens
-- Returns {accepted | exists | conflict | full, state or '', entries, held bytes,
--          of full: what is used up, entries | bytes | memory; else ''}
-- include: clock, job, window, tenants
local job = read_job(KEYS[1], 'state', 'digest')
local entries = redis.call('ZCARD', KEYS[3])
for i = 6, #KEYS, 3 do entries = entries + redis.call('XLEN', KEYS[i]) + redis.call('ZCARD', KEYS[i + 1]) end
local held = tonumber(redis.call('GET', KEYS[5]) or 0)

if job.state then
  if job.digest ~= ARGV[5] then return {'conflict', job.state, entries, held, ''} end
  -- A write, so that the caller's WAIT covers the submit whose reply was lost. HDEL comes first although it changes
  -- nothing: it is not refused at maxmemory, and no write after it is.
  redis.call('HDEL', KEYS[1], '')
  redis.call('HINCRBY', KEYS[1], 'submits', 1)
  return {'exists', job.state, entries, held, ''}
end
if not ARGV[6]:find('^%d*$') then return redis.error_reply('ERR deadline ms is no number: ' .. ARGV[6]) end
if entries >= tonumber(ARGV[9]) then return {'full', '', entries, held, 'entries'} end
if held + #ARGV[4] > tonumber(ARGV[10]) then return {'full', '', entries, held, 'bytes'} end

-- A place among those of other tenants; see refill. Answers it, or the error of a server that takes no more.
local function park(parked, tenants)
  local cost, name = math.floor(math.min(math.max(1, tonumber(ARGV[12])), 1e9)), '=' .. ARGV[11]
  local first, at, last, arrivals = redis.call('ZCARD', parked) == 0, nil, nil, nil
  if not first then at, last, arrivals = unpack(redis.call('HMGET', tenants, '@at', name, '@n')) end
  local start, arrival = math.max(leading(at), leading(last)), leading(arrivals) + 1
  local place = string.format('%016.0f %s', arrival, ARGV[1])
  local added = redis.pcall('ZADD', parked, string.format('%.0f', start), place)
  if type(added) == 'table' then return added end
  if first then redis.call('DEL', tenants) end
  redis.call('HSET', tenants, '@n', arrival, name, string.format('%.0f %d', start + cost, parked_of(last) + 1))
  return place
end

local parks = has_window(KEYS[6], KEYS[7])
local written
if parks then
  written = park(KEYS[7], KEYS[8])
else
  written = redis.pcall('XADD', KEYS[6], '*', 'id', ARGV[1], 'v', ARGV[3], 'b', ARGV[4])
end
if type(written) == 'table' and written.err then
  if written.err:find('OOM', 1, true) then return {'full', '', entries, held, 'memory'} end
  return written
end
redis.call('DEL', KEYS[2])  -- a log that outlived its hash would refuse the new job's entries
redis.call('HSET', KEYS[1], 'state', 'queued', 'lane', ARGV[2], 'version', ARGV[3], 'digest', ARGV[5],
  'entry', parks and '' or written, 'owner', '', 'attempt', 0, 'seq', 0, 'died', 0, 'submits', 1, 'bytes', #ARGV[4],
  'stream', ARGV[7], 'submitted_ms', parks and now_ms() or written:match('^%d+'))
if parks then redis.call('HSET', KEYS[1], 'payload', ARGV[4], 'place', written, 'tenant', ARGV[11]) end
if ARGV[6] ~= '' then redis.call('ZADD', KEYS[4], ARGV[6], ARGV[1]) end
if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'requeued_from', ARGV[8]) end
held = redis.call('INCRBY', KEYS[5], #ARGV[4])
return {'accepted', 'queued', entries + 1, held, ''}
