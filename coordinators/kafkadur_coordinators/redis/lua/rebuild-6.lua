--- Takes the right to rebuild a subscription whose state is gone, to go on with state that a server kept, or to look up
--- what members who are gone have committed in Kafka: from then on that is as after a restart.
-- KEYS     see include/context.lua
-- ARGV[1]  6 token of this rebuild  7 how long the right lasts, ms
-- Reply    head, 5 1: the state was kept (reincarnate-6 follows, or install-6 if it is old), 0: it is
--          gone (partitions-6+3, install-6 follow), 6 version of the definition that was kept, 7 partitions that were
-- Codes    OK; BUSY: 5 ms until the right of another one ends; INTACT: there is nothing to rebuild; VERSION
--- @include "context"
--- @include "members"

local request = cmsgpack.unpack(ARGV[1])
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
if row[1] and row[1] ~= '' and row[1] ~= request[6] and left > 0 and row[3] == ctx.server then
  local reply = head(ctx, 'BUSY')
  reply[5] = left
  return reply
end
if doubtful then
  redis.call('HSET', KEYS[1], 'doubt', '2')
  wake_all(ctx) -- their next exchange tells them to attach again
  send_wakes(ctx)
end
redis.call('HSET', KEYS[1], 'rebuild', request[6], 'rebuild_until', text(ctx.now + request[7]), 'rebuild_server', ctx.server)
local reply = head(ctx, 'OK')
reply[5] = code == 'MISSING' and 0 or 1
reply[6] = number(ctx.row.version, 0)
reply[7] = ctx.partitions
return reply
