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
return head(ctx, code, {
  [Known.definition] = store.definition(ctx), [Known.version] = ctx.version,
  [Known.id] = ctx.id, [Known.changing_ms] = changing_left(ctx) or -1,
  [Known.changing_from] = ctx.changing_from, [Known.members] = members,
  [Known.partitions] = ctx.partitions, [Known.grace_ms] = math.max(ctx.grace - ctx.now, 0),
  [Known.paused] = ctx.paused, [Known.begun] = ctx.begun,
  [Known.left] = ctx.left, [Known.last_verdict] = ctx.verdict, [Known.changing] = ctx.changing,
  [Known.state_version] = ctx.layout,
})
