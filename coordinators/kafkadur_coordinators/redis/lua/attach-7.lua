--- A member attaches to the subscription. The one that has just changed it (install-7) ends the change with that.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, AttachRequest
-- Reply    Reply, Attached
-- Codes    OK; ACTIVE (Active): other members are attached; CHANGED: the definition is not the version decided on;
--          CHANGING (Changing); and those of context.lua
--- @include "context"
--- @include "members"
--- @shape AttachRequest

local request = read_request()
if not request then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
local left = changing_left(ctx)
if left and (left == 0 or ctx.changing ~= request[AttachRequest.token]) then -- past the deadline others resolve it
  return head(ctx, 'CHANGING', { [Changing.left] = left })
end
if ctx.version ~= request[AttachRequest.version] then
  return head(ctx, 'CHANGED')
end
local most, names, whole, again = request[AttachRequest.most], others_attached(ctx)
if #names > 0 and (whole or request[AttachRequest.kind] == 'whole' or (most > 0 and #names >= most)) then
  return refuse_active(ctx, names, again)
end
if left then
  end_change(ctx)
end
ctx.attached = ctx.attached + 1
ctx.session_ttl = math.max(ctx.session_ttl, request[AttachRequest.session])
local old = load_member(ctx, ctx.caller)
if old then -- the same member attaches again: its leases have ended uncleanly
  remove_member(ctx, old, false)
end
local me = {
  id = ctx.caller, n = ctx.attached, expiry = ctx.now + request[AttachRequest.session], credit = 0, exchange = 0,
  tokens = {}, silent = 0, name = request[AttachRequest.name], refused = {}, ttl = request[AttachRequest.session],
  watches = {}, kind = request[AttachRequest.kind], served = ctx.served + 1, since = ctx.now,
  priority = request[AttachRequest.priority], preempt = request[AttachRequest.preempt],
  isolated = 0, suspect = 0, reservations = 0,
  transacted = request[AttachRequest.transacted],
}
ctx.served = ctx.served + 1
ctx.members[me.id] = me
touch_member(ctx, me)
ctx.ranks[#ctx.ranks + 1] = me.id
ctx.lists_changed = true
if #ctx.ranks == 1 then -- the first member holds the lanes, if the subscription has any
  ctx.holder = me.id
end
if ctx.next_expiry == 0 or me.expiry < ctx.next_expiry then
  ctx.next_expiry = me.expiry
end
if me.transacted == 1 then
  ctx.transacted = 1
end
wake_all(ctx)
finish(ctx)
return head(ctx, 'OK', {
  [Attached.role] = role_row(ctx, #ctx.ranks - 1), [Attached.grace_ms] = math.max(ctx.grace - ctx.now, 0),
  [Attached.attachment] = me.n,
})
