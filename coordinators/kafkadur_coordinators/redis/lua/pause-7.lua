--- Pauses a subscription, or lets it go on: while it is paused nothing is granted, and members dispatch
-- nothing. Messages in flight can be settled; other leased offsets are given back.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, PauseRequest
-- Reply    Reply
-- Codes    OK, and those of context.lua
--- @include "context"
--- @include "members"
--- @shape PauseRequest

local request = read_request()
if not request then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
ctx.paused = request[PauseRequest.paused]
wake_all(ctx)
finish(ctx)
return head(ctx, 'OK')
