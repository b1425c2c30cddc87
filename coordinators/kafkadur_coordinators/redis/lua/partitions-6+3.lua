--- Gives partitions their first state: before the definition is installed, when the topic has grown, or when the
--- subscription is moved or laid anew. What members who are gone held of them is forgotten then.
-- KEYS     see include/context.lua; three keys for each partition in ARGV[1][6], at most 16
-- ARGV[1]  6 partitions { partition, first offset, offsets below this may have been delivered before,
--            exceptions before it (runs.lua; nobody holds them), when the first is due (ms, -1: there are none) }
--          7 token of the change or rebuild that goes on ('': the topic has grown)  8 partitions the topic has now
-- Reply    head
-- Codes    OK; CHANGED: the change or rebuild is not (any more) this caller's; and those of context.lua
--- @include "context"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
local growing = request[7] == ''
if growing and code ~= 'OK' or code == 'VERSION' then
  return head(ctx, code)
end
local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_server')
local rebuilding = row[1] == request[7] and row[2] == ctx.server
if not growing and not rebuilding and ctx.row.changing ~= request[7] then
  return head(ctx, 'CHANGED')
end
local rest, moved = {}, {}
for _, part in ipairs(request[6]) do
  moved[part[1]] = not growing
end
for _, orphan in ipairs(ctx.orphans) do
  if moved[orphan[3]] then
    redis.call('HDEL', KEYS[3], text(orphan[1]))
  else
    rest[#rest + 1] = orphan
  end
end
if #rest < #ctx.orphans then
  redis.call('HSET', KEYS[1], 'orphans', cmsgpack.pack(rest))
end
for i, part in ipairs(request[6]) do
  local at = 7 + (i - 1) * 3
  if not growing then
    redis.call('DEL', KEYS[at], KEYS[at + 1], KEYS[at + 2])
  end
  if redis.call('EXISTS', KEYS[at]) == 0 then
    local first = text(part[2])
    redis.call('HSET', KEYS[at], 'base', first, 'next', first, 'avail', first, 'origin', text(part[2] - part[2] % 8),
      'due', text(part[5]), 'seen', text(part[3]), 'lane', '0')
    if part[4] ~= '' then
      redis.call('SET', KEYS[at + 2], part[4])
    end
  end
end
if growing and request[8] > ctx.partitions then
  redis.call('HSET', KEYS[1], 'partitions', text(request[8]))
  close(ctx)
end
return head(ctx, 'OK')
