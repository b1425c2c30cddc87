--- The server restarted and kept its data: a new incarnation. Settled offsets stay; every lease has ended
--- and nothing is counted for it; members claim what is still in flight (reclaim-7+3). No fresh lease is granted
--- until all former members are back and have made an exchange, or the longest session is over. Members without leases
--- count, too: the server may have lost its last grants.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, ReincarnateRequest
-- Reply    Reply
-- Codes    OK; CHANGED: the right to rebuild is not (any more) this caller's, or another server answers; VERSION
--- @include "context"
--- @include "members"
--- @shape ReincarnateRequest

local request = read_request()
if not request then
  return invalid()
end
local ctx, code = open(request)
if code == 'VERSION' then
  return head(ctx, code)
end
if code ~= 'RESTARTED' or not may_rebuild(ctx, request[ReincarnateRequest.token]) then
  return head(ctx, code == 'OK' and 'OK' or 'CHANGED')
end
local looked_up = was_looked_up(ctx)
begin_anew(ctx, request[ReincarnateRequest.incarnation])
if not looked_up then
  ctx.quiet = ctx.now + ctx.session_ttl
end
ctx.server, ctx.recovered, ctx.doubt = ctx.here, ctx.incarnation, 0
end_rebuild(ctx)
store.put_claims(ctx, nil)
close(ctx)
return head(ctx, 'OK')
