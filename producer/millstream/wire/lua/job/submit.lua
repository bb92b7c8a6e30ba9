-- Queue a job under its id, once: in its lane, or parked beside it if the lane has its window.
--
-- KEYS  job, tokens, delayed, deadlines, bytes, then the keys lane, parked, tenants of each lane, the job's first
-- ARGV  id, lane name, version, payload, digest, deadline ms or '', stream '1' or '', requeued from or '',
--       max entries, max bytes, tenant, cost in tokens
-- Returns {accepted | exists | conflict | full, state or '', entries, held bytes,
--          of full: the exhausted bound, entries | bytes | memory; else ''}
-- include: clock, job, window, tenants
local job_key, tokens, delayed, deadlines, bytes, lane, parked, tenants = unpack(KEYS, 1, 8)
local id, lane_name, version, payload, digest, deadline_ms, stream, requeued_from, max_entries, max_bytes, tenant,
  cost = unpack(ARGV)
local job = read_job(job_key, 'state', 'digest')
local entries = redis.call('ZCARD', delayed)
for i = 6, #KEYS, 3 do entries = entries + redis.call('XLEN', KEYS[i]) + redis.call('ZCARD', KEYS[i + 1]) end
local held = tonumber(redis.call('GET', bytes) or 0)

if job.state then
  if job.digest ~= digest then return {'conflict', job.state, entries, held, ''} end
  -- A write, so that the caller's WAIT covers the submit whose reply was lost. HDEL comes first although it changes
  -- nothing: it is not refused at maxmemory, and no write after it is.
  redis.call('HDEL', job_key, '')
  redis.call('HINCRBY', job_key, 'submits', 1)
  return {'exists', job.state, entries, held, ''}
end
if not deadline_ms:find('^%d*$') then return redis.error_reply('ERR deadline ms is no number: ' .. deadline_ms) end
if entries >= tonumber(max_entries) then return {'full', '', entries, held, 'entries'} end
if held + #payload > tonumber(max_bytes) then return {'full', '', entries, held, 'bytes'} end

cost = math.floor(math.min(math.max(1, tonumber(cost)), 1e9))

-- Park the job among those of other tenants, see refill. Returns its place, or the error of a full server.
local function park()
  local name = '=' .. tenant
  local first, at, last, arrivals = redis.call('ZCARD', parked) == 0, nil, nil, nil
  if not first then at, last, arrivals = unpack(redis.call('HMGET', tenants, '@at', name, '@n')) end
  local start, arrival = math.max(leading(at), leading(last)), leading(arrivals) + 1
  local place = string.format('%016.0f %s', arrival, id)
  local added = redis.pcall('ZADD', parked, string.format('%.0f', start), place)
  if type(added) == 'table' then return added end
  if first then redis.call('DEL', tenants) end
  redis.call('HSET', tenants, '@n', arrival, name, string.format('%.0f %d', start + cost, parked_of(last) + 1))
  return place
end

local parks = has_window(lane, parked, cost)
local written
if parks then
  written = park()
else
  written = redis.pcall('XADD', lane, '*', 'id', id, 'v', version, 'b', payload)
end
if type(written) == 'table' and written.err then
  if written.err:find('OOM', 1, true) then return {'full', '', entries, held, 'memory'} end
  return written
end
redis.call('DEL', tokens)  -- a log that outlived its hash would refuse the new job's entries
redis.call('HSET', job_key, 'state', 'queued', 'lane', lane_name, 'version', version, 'digest', digest,
  'entry', parks and '' or written, 'owner', '', 'attempt', 0, 'seq', 0, 'died', 0, 'submits', 1, 'bytes', #payload,
  'stream', stream, 'tenant', tenant, 'submitted_ms', parks and now_ms() or written:match('^%d+'))
if parks then redis.call('HSET', job_key, 'payload', payload, 'place', written) end
if deadline_ms ~= '' then redis.call('ZADD', deadlines, deadline_ms, id) end
if requeued_from ~= '' then redis.call('HSET', job_key, 'requeued_from', requeued_from) end
held = redis.call('INCRBY', bytes, #payload)
return {'accepted', 'queued', entries + 1, held, ''}
