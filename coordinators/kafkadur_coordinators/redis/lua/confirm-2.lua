--- The usual exchange of a member that is alone: the next offsets of a partition are settled, all of one lease of it, and there
--- is nothing else to say. It does what exchange-7+3 does then, in a third of the time: without the functions and the records
--- that everything else needs. tests/integration/coordinators/test_confirm.py compares the two.
-- KEYS     state and seal: the first two of include/context.lua
-- ARGV[1]  Request, ConfirmRequest; ARGV[2]  as in include/context.lua
-- Reply    Reply, ConfirmReply
-- Codes    OK; SLOW (something is unusual: nothing was changed, and exchange-7+3 has to be called, which knows what to do);
--          INVALID (malformed)
-- Cost     constant
--- @shape ConfirmRequest
--- @include "short"
local FIELDS = { SubscriptionRow.policy, MemberRow.transacted, LeaseRow.due, PartitionRow.index_length, 4 } -- the last ones
local LANE = { exclusive = true, priority = true, serial = true }

local function lease_of(token)
  return 'l:' .. text(token)
end

--- The place of an item in a list; nil if it is not there.
local function contains(list, item)
  for at = 1, #list do
    if list[at] == item then
      return at
    end
  end
  return nil
end

local request = read_request()
if not request or #KEYS ~= 2 then
  return invalid()
end
local slow = { 'SLOW', 0, 0, 0 }
local id, token, p = request[Request.member], request[ConfirmRequest.token], request[ConfirmRequest.partition]
local raw = redis.pcall('HMGET', KEYS[1], 's', 'm:' .. id, lease_of(token), 'p:' .. p, 'lists', 'state_version')
if raw.err or raw[6] ~= text(STATE_VERSION) then
  return slow
end
local rows = unpacked(raw, FIELDS)
if not rows then
  return slow
end
local s, me, l, pt, lists = rows[1], rows[2], rows[3], rows[4], rows[5]

-- Is it the subscription, the server and the member that the caller knows, and does nothing wait to be done first?
local now, skew = read_time(request, s[SubscriptionRow.time], s[SubscriptionRow.skew])
local fields = redis.call('HLEN', KEYS[1])
if not is_usual(request, s, now, skew, fields) or s[SubscriptionRow.paused] == 1
  or #lists[1] ~= 1 or lists[1][1] ~= id or #lists[2] > 0 or #lists[4] > 0 then
  return slow
end
local attached = me[MemberRow.n] == request[ConfirmRequest.attachment] and me[MemberRow.kind] == ''
if not attached or not contains(me[MemberRow.tokens], token) or me[MemberRow.exchange] + 1 ~= request[ConfirmRequest.number]
  or request[ConfirmRequest.have] ~= s[SubscriptionRow.token] or me[MemberRow.isolated] ~= 0
  or me[MemberRow.suspect] ~= 0 or me[MemberRow.reservations] ~= 0 then
  return slow
end

-- Are these the next offsets of the partition, and are there no exceptions?
local settled, stop = request[ConfirmRequest.start], request[ConfirmRequest.stop]
local held = l[LeaseRow.member] == id and l[LeaseRow.p] == p and l[LeaseRow.s] <= settled and stop <= l[LeaseRow.e]
local plain = pt[PartitionRow.xd] < 0 and pt[PartitionRow.digest] == '' and pt[PartitionRow.index_length] == 0
  and pt[PartitionRow.recovered] >= s[SubscriptionRow.recovered]
if not (held and plain) or settled ~= pt[PartitionRow.base] or stop <= settled then
  return slow
end
local readable_end = math.max(pt[PartitionRow.readable_end], request[ConfirmRequest.readable_end], stop)
if math.min(pt[PartitionRow.next], readable_end) - stop > CONVERT_BITS then
  return slow
end
pt[PartitionRow.base], pt[PartitionRow.readable_end] = stop, readable_end
pt[PartitionRow.epoch] = math.max(pt[PartitionRow.epoch], request[ConfirmRequest.epoch])

me[MemberRow.exchange], me[MemberRow.expiry] = request[ConfirmRequest.number], now + me[MemberRow.ttl]
me[MemberRow.silent], me[MemberRow.refused], me[MemberRow.credit] = 0, {}, request[ConfirmRequest.credit]

-- What is granted now?
local horizon, granted, put, gone = 0, 0, {}, 0
local function write(field, row)
  put[#put + 1], put[#put + 2] = field, cmsgpack.pack(row)
end

if LANE[s[SubscriptionRow.type]] and s[SubscriptionRow.policy][Policy.own_turns] == 0 then
  local position = request[ConfirmRequest.position]
  if s[SubscriptionRow.holder] ~= id or pt[PartitionRow.lane] ~= token or request[ConfirmRequest.ends] == 1
    or position < 0 or request[ConfirmRequest.span] <= 0 then
    return slow
  end
  horizon = math.min(position, l[LeaseRow.e]) + request[ConfirmRequest.span]
  if horizon > l[LeaseRow.e] then
    l[LeaseRow.e], pt[PartitionRow.next] = horizon, math.max(pt[PartitionRow.next], horizon)
    write(lease_of(token), l)
  end
  horizon = l[LeaseRow.e]
elseif s[SubscriptionRow.type] == 'shared' then
  local tokens, ends = me[MemberRow.tokens], request[ConfirmRequest.ends] == 1
  local fresh = math.max(readable_end - pt[PartitionRow.next], 0)
  granted = math.min(me[MemberRow.credit], fresh)
  if l[LeaseRow.kind] ~= 'range' or ends and stop < l[LeaseRow.e] or #tokens >= MAX_LEASES then
    return slow
  end
  me[MemberRow.credit] = me[MemberRow.credit] - granted
  -- A member without room watches no partition.
  local watched, unwatched = contains(me[MemberRow.watches], p), lists[3]
  if me[MemberRow.credit] > 0 and not (watched and #unwatched == 0)
    or me[MemberRow.credit] == 0 and (watched or unwatched[#unwatched] ~= p) then
    return slow
  end
  if request[ConfirmRequest.reserve] > 0 and pt[PartitionRow.next] + granted >= readable_end then
    return slow -- offsets that are not written yet may be reserved
  end
  if ends then
    gone = 1
    table.remove(tokens, contains(tokens, token))
  end
  if granted > 0 then
    local first = pt[PartitionRow.next]
    s[SubscriptionRow.token], s[SubscriptionRow.served] = s[SubscriptionRow.token] + 1, s[SubscriptionRow.served] + 1
    tokens[#tokens + 1], me[MemberRow.served] = s[SubscriptionRow.token], s[SubscriptionRow.served]
    pt[PartitionRow.next] = first + granted
    write(lease_of(s[SubscriptionRow.token]), {
      [LeaseRow.p] = p, [LeaseRow.s] = first, [LeaseRow.e] = first + granted, [LeaseRow.member] = id, [LeaseRow.marks] = 0,
      [LeaseRow.kind] = 'range', [LeaseRow.records] = granted, [LeaseRow.seen] = pt[PartitionRow.seen],
      [LeaseRow.isolated] = 0, [LeaseRow.due] = 0,
    })
  end
  write('hungry', me[MemberRow.credit] > 0 and { id, me[MemberRow.served] } or {})
else
  return slow
end

s[SubscriptionRow.sequence], s[SubscriptionRow.time] = s[SubscriptionRow.sequence] + 1, now
s[SubscriptionRow.verdict] = now
write('s', s)
write('m:' .. id, me)
write('p:' .. p, pt)
-- first HSET: a server without memory refuses it only as the first change of a script
fields = fields + redis.call('HSET', KEYS[1], unpack(put))
if gone > 0 then
  fields = fields - redis.call('HDEL', KEYS[1], lease_of(token))
end
redis.call('SET', KEYS[2], struct.pack(SEAL, s[SubscriptionRow.sequence], fields))
return {
  'OK', s[SubscriptionRow.sequence], s[SubscriptionRow.incarnation], now,
  [ConfirmReply.partitions] = s[SubscriptionRow.partitions], [ConfirmReply.base] = stop,
  [ConfirmReply.next] = pt[PartitionRow.next], [ConfirmReply.readable_end] = readable_end,
  [ConfirmReply.epoch] = pt[PartitionRow.epoch], [ConfirmReply.horizon] = horizon,
  [ConfirmReply.token] = s[SubscriptionRow.token], [ConfirmReply.granted] = granted,
  [ConfirmReply.seen] = pt[PartitionRow.seen],
}
