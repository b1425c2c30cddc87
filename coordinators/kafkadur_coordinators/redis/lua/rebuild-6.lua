--- Takes the right to rebuild a subscription whose state is gone, to go on with state that a server kept, or to look up
--- the commits of dead members in Kafka: from then on the subscription is treated as after a restart.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, RebuildRequest
-- Reply    Reply, RebuildReply
-- Codes    OK; BUSY (Busy): another one has the right; INTACT: there is nothing to rebuild; VERSION
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
local doubtful = code == 'OK' and ctx.row.doubt == '1'
if code ~= 'MISSING' and code ~= 'RESTARTED' and not doubtful then
  return head(ctx, 'INTACT')
end
local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_until', 'rebuild_server')
local left = number(row[2], 0) - ctx.now
if row[1] and row[1] ~= '' and row[1] ~= request[RebuildRequest.token] and left > 0 and row[3] == ctx.server then
  return head(ctx, 'BUSY', { [Busy.left] = left })
end
if doubtful then
  redis.call('HSET', KEYS[1], 'doubt', '2')
  wake_all(ctx) -- their next exchange tells them to attach again
  send_wakes(ctx)
end
redis.call('HSET', KEYS[1], 'rebuild', request[RebuildRequest.token],
  'rebuild_until', text(ctx.now + request[RebuildRequest.lasts]), 'rebuild_server', ctx.server)
return head(ctx, 'OK', {
  [RebuildReply.kept] = code == 'MISSING' and 0 or 1, [RebuildReply.version] = number(ctx.row.version, 0),
  [RebuildReply.partitions] = ctx.partitions,
})
