--- A member attaches to the subscription.
-- KEYS     see include/context.lua
-- ARGV[1]  6 name for people  7 session time-out, ms  8 version of the definition that was decided on
--          9 most members, this one included (0: no limit)  10 kind: '', 'whole' (holds the whole subscription) or
--          'claims' (takes stretches at once, beside others)
--          11 priority (higher is better)  12 1: it preempts a holder of lower priority, which drains first
--          13 1: it settles by transactions of Kafka (older clients leave it out)
-- Reply    head, 5 { rank, members, id of the next member }, 6 partitions known, 7 ms until leases are granted,
--          8 number of this attachment: exchanges of an earlier one are refused
-- Codes    OK; ACTIVE: 5 names of the members in the way, 6 ms after which asking again makes sense (-1: it does
--          not; they are alive); CHANGED: the definition is not the version decided on; CHANGING: 5 ms until its
--          deadline; and those of context.lua
--- @include "context"
--- @include "members"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
if ctx.row.changing and ctx.row.changing ~= '' then
  local reply = head(ctx, 'CHANGING')
  reply[5] = math.max(number(ctx.row.changing_until, 0) - ctx.now, 0)
  return reply
end
if tonumber(ctx.row.version) ~= request[8] then
  return head(ctx, 'CHANGED')
end
local again = reap(ctx, true)
local names, whole = {}, request[10] == 'whole'
for _, id in ipairs(ctx.ranks) do
  local m = id ~= ctx.caller and load_member(ctx, id)
  if m then
    names[#names + 1] = m.name
    whole = whole or m.kind == 'whole'
  end
end
if #names > 0 and (whole or (request[9] > 0 and #names >= request[9])) then
  save_members(ctx)
  send_wakes(ctx)
  close(ctx)
  local reply = head(ctx, 'ACTIVE')
  reply[5] = names
  reply[6] = again
  return reply
end
ctx.attached = ctx.attached + 1
ctx.attached_changed = true
ctx.session_ttl = math.max(ctx.session_ttl, request[7])
local old = load_member(ctx, ctx.caller)
if old then -- the same member attaches again: what it held has ended uncleanly
  remove_member(ctx, old, false)
end
local me = {
  id = ctx.caller, n = ctx.attached, expiry = ctx.now + request[7], credit = 0, exchange = 0, tokens = {}, silent = 0,
  name = request[6], refused = {}, ttl = request[7], watches = {}, kind = request[10], served = ctx.served + 1,
  since = ctx.now, priority = request[11], preempt = request[12], alone = 0, suspect = 0, ahead = 0,
  transacted = request[13] or 0,
}
ctx.served = ctx.served + 1
ctx.members[me.id] = me
touch_member(ctx, me)
ctx.ranks[#ctx.ranks + 1] = me.id
ctx.ranks_changed = true
if #ctx.ranks == 1 then -- who comes first holds the lanes, if the subscription has any
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
reply[5] = { #ctx.ranks - 1, #ctx.ranks, ctx.ranks[1] }
reply[6] = ctx.partitions
reply[7] = math.max(ctx.grace - ctx.now, 0)
reply[8] = me.n
return reply
