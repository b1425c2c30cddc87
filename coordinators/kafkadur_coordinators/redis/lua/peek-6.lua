--- What is known of a subscription: enough to decide who may attach. Changes nothing.
-- KEYS     see include/context.lua
-- ARGV[1]  Request
-- Reply    Reply, PeekReply
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
reply[PeekReply.definition] = row[1] or ''
reply[PeekReply.version] = number(ctx.row.version, 0)
reply[PeekReply.id] = ctx.row.id or ''
reply[PeekReply.changing] = -1
if ctx.row.changing and ctx.row.changing ~= '' then
  reply[PeekReply.changing] = math.max(number(ctx.row.changing_until, 0) - ctx.now, 0)
end
reply[PeekReply.changing_from] = number(row[2], 0)
local members = {}
for i, id in ipairs(ctx.ranks) do
  local m = load_member(ctx, id)
  if m then
    members[i] = {
      [MemberRow.id] = m.id, [MemberRow.name] = m.name, [MemberRow.kind] = m.kind,
      [MemberRow.heard] = is_heard(ctx, id) and 1 or 0, [MemberRow.leases] = #m.tokens, [MemberRow.since_at] = m.since,
      [MemberRow.expires_at] = m.expiry, [MemberRow.credit] = m.credit,
    }
  end
end
reply[PeekReply.members] = members
reply[PeekReply.partitions] = ctx.partitions
reply[PeekReply.grace] = math.max(ctx.grace - ctx.now, 0)
reply[PeekReply.paused] = ctx.row.paused == '1' and 1 or 0
reply[PeekReply.begun_at], reply[PeekReply.left_at] = number(row[3], 0), number(row[4], 0)
reply[PeekReply.verdict_at] = number(row[5], 0)
return reply
