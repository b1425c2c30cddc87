--- The state of a subscription, as far as it decides which members may attach. Changes nothing.
-- KEYS     see include/context.lua
-- ARGV[1]  Request
-- Reply    Reply, Known
-- Codes    OK, and those of context.lua (with MISSING: the fields of Known as far as they are known)
--- @include "context"
--- @include "members"
--- @shape Request

local request = read_request()
if not request then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' and code ~= 'MISSING' then
  return head(ctx, code)
end
local members = {}
for _, id in ipairs(ctx.ranks) do
  local m = load_member(ctx, id)
  if m then
    members[#members + 1] = {
      [MemberInfo.id] = m.id, [MemberInfo.name] = m.name, [MemberInfo.kind] = m.kind,
      [MemberInfo.heard] = is_heard(ctx, id) and 1 or 0, [MemberInfo.leases] = #m.tokens, [MemberInfo.since] = m.since,
      [MemberInfo.expires] = m.expiry, [MemberInfo.credit] = m.credit,
    }
  end
end
local row = redis.call('HMGET', KEYS[1], 'definition', 'changing_from', 'begun', 'left', 'verdict')
return head(ctx, code, {
  [Known.definition] = row[1] or '', [Known.version] = number(ctx.row.version, 0),
  [Known.id] = ctx.row.id or '', [Known.changing_ms] = changing_left(ctx) or -1,
  [Known.changing_from] = number(row[2], 0), [Known.members] = members,
  [Known.partitions] = ctx.partitions, [Known.grace_ms] = math.max(ctx.grace - ctx.now, 0),
  [Known.paused] = ctx.row.paused == '1' and 1 or 0, [Known.begun] = number(row[3], 0),
  [Known.left] = number(row[4], 0), [Known.last_verdict] = number(row[5], 0),
})
