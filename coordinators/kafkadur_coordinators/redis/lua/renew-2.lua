--- Renews the session of a member that has nothing to say, if nothing has changed since its last exchange.
-- KEYS     state and seal: the first two of include/context.lua
-- ARGV[1]  Request, RenewRequest; ARGV[2]  as in include/context.lua
-- Reply    Reply
-- Codes    OK; SLOW (something has changed, or is to be done: nothing was changed, and exchange-7+3 has to be called);
--          INVALID (malformed)
-- Cost     constant
--- @shape RenewRequest
--- @include "short"

local request = read_request()
if not request or #KEYS ~= 2 then
  return invalid()
end
local slow = { 'SLOW', 0, 0, 0 }
local id = request[Request.member]
local raw = redis.pcall('HMGET', KEYS[1], 's', 'm:' .. id, 'lists', 'state_version')
if raw.err or raw[4] ~= text(STATE_VERSION) then
  return slow
end
local rows = unpacked(raw, { SubscriptionRow.policy, MemberRow.transacted, 4 }) -- the last ones
if not rows then
  return slow
end
local s, me, lists = rows[1], rows[2], rows[3]

local now, skew = read_time(request, s[SubscriptionRow.time], s[SubscriptionRow.skew])
if not is_usual(request, s, now, skew, redis.call('HLEN', KEYS[1]))
  or s[SubscriptionRow.sequence] ~= request[RenewRequest.sequence] or #lists[2] > 0 or #lists[4] > 0
  or me[MemberRow.n] ~= request[RenewRequest.attachment] or me[MemberRow.silent] ~= 0 then
  return slow
end

-- The number of the last change stays, so that the other members can be renewed like this as well. What is lost if the
-- server loses this is that the session ends earlier.
me[MemberRow.expiry], s[SubscriptionRow.time] = now + me[MemberRow.ttl], now
if #lists[1] == 1 then
  s[SubscriptionRow.next_expiry] = me[MemberRow.expiry]
end
redis.call('HSET', KEYS[1], 's', cmsgpack.pack(s), 'm:' .. id, cmsgpack.pack(me))
return { 'OK', s[SubscriptionRow.sequence], s[SubscriptionRow.incarnation], now }
