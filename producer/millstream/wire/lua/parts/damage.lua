-- Whether an error that `pcall` caught is the job's own: its keys are of other types, or lack fields that every job
-- has. A refusal of the server is not, and has to be raised again.
local function is_damage(caught)
  local text = type(caught) == 'table' and caught.err or tostring(caught)
  return text:find('WRONGTYPE', 1, true) or text:find('attempt to', 1, true)
end
