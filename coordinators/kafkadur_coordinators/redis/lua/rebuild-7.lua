--- Takes the right to rebuild a subscription whose state is gone, to go on with state that a server kept, or to look up
--- the commits of dead members in Kafka: from then on the subscription is treated as after a restart.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, RebuildRequest
-- Reply    Reply, RebuildReply
-- Codes    OK; BUSY (Busy): another one has the right, or creates it; INTACT: there is nothing to rebuild; VERSION
--- @include "context"
--- @include "members"
--- @shape RebuildRequest

local request = read_request()
if not request then
  return invalid()
end
local ctx, code = open(request)
if code == 'VERSION' then
  return head(ctx, code)
end
local doubtful = code == 'OK' and ctx.doubt == 1
if code ~= 'MISSING' and code ~= 'RESTARTED' and not doubtful then
  return head(ctx, 'INTACT')
end
local left = ctx.rebuild_until - ctx.now
if ctx.rebuild ~= '' and ctx.rebuild ~= request[RebuildRequest.token] and left > 0 and ctx.rebuild_server == ctx.here then
  return head(ctx, 'BUSY', { [Busy.left] = left })
end
left = code == 'MISSING' and changing_left(ctx) or 0
if left > 0 then -- it is being created: the journal has its definition already, and nothing is lost
  return head(ctx, 'BUSY', { [Busy.left] = left })
end
if doubtful then
  ctx.doubt = 2
  wake_all(ctx) -- their next exchange tells them to attach again
elseif code == 'RESTARTED' and ctx.server == ctx.here and ctx.doubt ~= 2 then
  -- The caller knows a later incarnation. It reads the state and replaces it later: nothing must be settled in between.
  ctx.server = ''
  wake_all(ctx)
end
ctx.rebuild, ctx.rebuild_server = request[RebuildRequest.token], ctx.here
ctx.rebuild_until = ctx.now + request[RebuildRequest.lasts]
finish(ctx)
return head(ctx, 'OK', {
  [RebuildReply.kept] = code == 'MISSING' and 0 or 1, [RebuildReply.version] = ctx.version,
  [RebuildReply.partitions] = ctx.partitions,
})
