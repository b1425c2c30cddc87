--- Gives partitions their first state: before the definition is installed, when the topic has grown, or when the
--- subscription is moved or laid anew. The leases of members that are gone on them are forgotten then.
-- KEYS     see include/context.lua; three keys for each of its partitions, at most 16
-- ARGV[1]  Request, PartitionsRequest
-- Reply    Reply
-- Codes    OK; CHANGED: the change or rebuild is not (any more) this caller's; and those of context.lua
--- @include "context"
--- @include "members"
--- @shape PartitionsRequest

local request = read_request()
if not (request and has_keys(request[PartitionsRequest.partitions], Laid.partition)) then
  return invalid()
end
local ctx, code = open(request)
local token = request[PartitionsRequest.token]
local growing = token == ''
if growing and code ~= 'OK' or code == 'VERSION' then
  return head(ctx, code)
end
if not growing and ctx.row.changing ~= token and not may_rebuild(ctx, token) then
  return head(ctx, 'CHANGED')
end
local rest, moved = {}, {}
for _, part in ipairs(request[PartitionsRequest.partitions]) do
  moved[part[Laid.partition]] = not growing
end
for _, orphan in ipairs(ctx.orphans) do
  if moved[orphan[Orphan.partition]] then
    redis.call('HDEL', KEYS[3], text(orphan[Orphan.token]))
  else
    rest[#rest + 1] = orphan
  end
end
if #rest < #ctx.orphans then
  redis.call('HSET', KEYS[1], 'orphans', cmsgpack.pack(rest))
end
for i, part in ipairs(request[PartitionsRequest.partitions]) do
  local at = 7 + (i - 1) * 3
  if not growing then
    redis.call('DEL', KEYS[at], KEYS[at + 1], KEYS[at + 2])
  end
  if redis.call('EXISTS', KEYS[at]) == 0 then
    local first = text(part[Laid.first])
    redis.call('HSET', KEYS[at], 'base', first, 'next', first, 'avail', first, 'origin',
      text(part[Laid.first] - part[Laid.first] % 8), 'due', text(part[Laid.due_at]), 'seen', text(part[Laid.seen]),
      'lane', '0')
    if part[Laid.runs] ~= '' then
      redis.call('SET', KEYS[at + 2], part[Laid.runs])
    end
  end
end
if growing and request[PartitionsRequest.total] > ctx.partitions then
  redis.call('HSET', KEYS[1], 'partitions', text(request[PartitionsRequest.total]))
  wake_all(ctx) -- each member learns it with its next exchange
  finish(ctx)
end
return head(ctx, 'OK')
