-- Add a worker's versions to the window in the queue's metadata, which is never narrowed, and record its model. A
-- queue has one model: if another digest is recorded, nothing is written unless the model is to be replaced; nor is
-- anything where there is no metadata.
--
-- KEYS  meta (exists: `open_queue` comes first)
-- ARGV  lowest version taken, highest version taken, model or '', its digest or '', replace '1' or ''
-- Returns the fields as they are stored
-- include: model
local meta = KEYS[1]
local lowest, highest, model, digest, replace = unpack(ARGV)
local low, high, recorded = unpack(redis.call('HMGET', meta, 'version_min', 'version_max', 'model_digest'))
if low and (replace == '1' or not is_other_model(recorded, digest)) then
  redis.call('PERSIST', meta)  -- first: it passes at maxmemory, and so does all that follows
  if tonumber(lowest) < tonumber(low) then redis.call('HSET', meta, 'version_min', lowest) end
  if high and tonumber(highest) > tonumber(high) then redis.call('HSET', meta, 'version_max', highest) end
  if model ~= '' then redis.call('HSET', meta, 'model', model) end
  if digest ~= '' then redis.call('HSET', meta, 'model_digest', digest) end
end
return redis.call('HGETALL', meta)
