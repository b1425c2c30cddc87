--- What is known of a subscription: enough to decide who may attach. Changes nothing.
-- KEYS     see include/context.lua
-- ARGV[1]  only the common part
-- Reply    head, 5 definition (JSON), 6 version, 7 id, 8 ms until the deadline of a change in progress (-1: none,
--          0: past), 9 expected version of that change, 10 members { id, name, kind, heard, tokens held, attached at,
--          expiry, credit }, 11 partitions, 12 ms until leases are granted, 13 1: it is paused, 14 since when this server
--          knows it, 15 when the last member left, 16 when the last verdict came (ms; 0: never, or not known)
-- Codes    OK, and those of context.lua (with MISSING: 5-9 as far as they are known)
--- @include "context"
--- @include "members"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
local reply = head(ctx, code)
if code ~= 'OK' and code ~= 'MISSING' then
  return reply
end
local row = redis.call('HMGET', KEYS[1], 'definition', 'changing_from', 'begun', 'left', 'verdict')
reply[5] = row[1] or ''
reply[6] = number(ctx.row.version, 0)
reply[7] = ctx.row.id or ''
reply[8] = -1
if ctx.row.changing and ctx.row.changing ~= '' then
  reply[8] = math.max(number(ctx.row.changing_until, 0) - ctx.now, 0)
end
reply[9] = number(row[2], 0)
local members = {}
for i, id in ipairs(ctx.ranks) do
  local m = load_member(ctx, id)
  if m then
    members[i] = {
      m.id, m.name, m.kind, is_heard(ctx, id) and 1 or 0, #m.tokens, m.since, m.expiry, m.credit,
    }
  end
end
reply[10] = members
reply[11] = ctx.partitions
reply[12] = math.max(ctx.grace - ctx.now, 0)
reply[13] = ctx.row.paused == '1' and 1 or 0
for i = 3, 5 do
  reply[11 + i] = number(row[i], 0)
end
return reply
