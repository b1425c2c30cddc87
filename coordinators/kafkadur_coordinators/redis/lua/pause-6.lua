--- Pauses a subscription, or lets it go on: while it is paused nothing is granted, and members hand nothing out. What is
-- in applications' hands can be settled; what is not is given back.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, PauseRequest
-- Reply    Reply
-- Codes    OK, and those of context.lua
--- @include "context"
--- @include "members"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
redis.call('HSET', KEYS[1], 'paused', text(request[PauseRequest.paused]))
wake_all(ctx)
send_wakes(ctx)
close(ctx)
return head(ctx, 'OK')
