--- A member attaches to the subscription.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, AttachRequest
-- Reply    Reply, AttachReply
-- Codes    OK; ACTIVE (Active): other members are in the way; CHANGED: the definition is not the version decided on;
--          CHANGING (Changing); and those of context.lua
--- @include "context"
--- @include "members"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
if ctx.row.changing and ctx.row.changing ~= '' then
  local reply = head(ctx, 'CHANGING')
  reply[Changing.left] = math.max(number(ctx.row.changing_until, 0) - ctx.now, 0)
  return reply
end
if tonumber(ctx.row.version) ~= request[AttachRequest.version] then
  return head(ctx, 'CHANGED')
end
local again = reap(ctx, true)
local names, whole = {}, request[AttachRequest.kind] == 'whole'
for _, id in ipairs(ctx.ranks) do
  local m = id ~= ctx.caller and load_member(ctx, id)
  if m then
    names[#names + 1] = m.name
    whole = whole or m.kind == 'whole'
  end
end
if #names > 0 and (whole or (request[AttachRequest.most] > 0 and #names >= request[AttachRequest.most])) then
  save_members(ctx)
  send_wakes(ctx)
  close(ctx)
  local reply = head(ctx, 'ACTIVE')
  reply[Active.names] = names
  reply[Active.again] = again
  return reply
end
ctx.attached = ctx.attached + 1
ctx.attached_changed = true
ctx.session_ttl = math.max(ctx.session_ttl, request[AttachRequest.session])
local old = load_member(ctx, ctx.caller)
if old then -- the same member attaches again: what it held has ended uncleanly
  remove_member(ctx, old, false)
end
local me = {
  id = ctx.caller, n = ctx.attached, expiry = ctx.now + request[AttachRequest.session], credit = 0, exchange = 0,
  tokens = {}, silent = 0, name = request[AttachRequest.name], refused = {}, ttl = request[AttachRequest.session],
  watches = {}, kind = request[AttachRequest.kind], served = ctx.served + 1, since = ctx.now,
  priority = request[AttachRequest.priority], preempt = request[AttachRequest.preempt],
  isolated = 0, suspect = 0, ahead = 0,
  transacted = request[AttachRequest.transacted] or 0,
}
ctx.served = ctx.served + 1
ctx.members[me.id] = me
touch_member(ctx, me)
ctx.ranks[#ctx.ranks + 1] = me.id
ctx.ranks_changed = true
if #ctx.ranks == 1 then -- the first member holds the lanes, if the subscription has any
  ctx.holder, ctx.holder_changed = me.id, true
end
if ctx.next_expiry == 0 or me.expiry < ctx.next_expiry then
  ctx.next_expiry = me.expiry
end
wake_all(ctx)
save_members(ctx)
send_wakes(ctx)
close(ctx)
if me.transacted == 1 then
  redis.call('HSET', KEYS[1], 'state_version', text(TRANSACTED_VERSION))
end
local reply = head(ctx, 'OK')
reply[AttachReply.role] = role_row(ctx, #ctx.ranks - 1)
reply[AttachReply.partitions] = ctx.partitions
reply[AttachReply.grace] = math.max(ctx.grace - ctx.now, 0)
reply[AttachReply.attachment] = me.n
return reply
