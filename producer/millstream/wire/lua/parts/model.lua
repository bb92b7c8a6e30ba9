-- Whether both model digests are known, and differ.
local function is_other_model(known, digest)
  return known and known ~= '' and digest ~= '' and known ~= digest
end
