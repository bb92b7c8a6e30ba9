-- include: tenants
-- Remove an ended job from its place. `parking`: the keys parked, tenants of each lane; it is in one at most.
local function unpark(parking, place, tenant)
  for i = 1, #parking, 2 do
    if redis.pcall('ZREM', parking[i], place) == 1 then
      if redis.call('ZCARD', parking[i]) == 0 then
        redis.call('DEL', parking[i + 1])
      else
        left_place(parking[i + 1], tenant, true)
      end
    end
  end
end
