-- A batch that has one of these has ended.
local ENDED = {failed = true, completed = true, expired = true, cancelled = true}
