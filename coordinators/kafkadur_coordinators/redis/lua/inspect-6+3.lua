--- The state of partitions and of all leases, for people, checkpoints and recovery. Changes nothing.
-- KEYS     see include/context.lua; three keys for each of its partitions, at most 16
-- ARGV[1]  Request, InspectRequest
-- Reply    Reply, InspectReply
-- Codes    OK, and those of context.lua
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code == 'RESTARTED' and request[InspectRequest.token] ~= '' then
  local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_server')
  code = row[1] == request[InspectRequest.token] and row[2] == ctx.server and 'OK' or code
end
if code ~= 'OK' then
  return head(ctx, code)
end
local states, leases = {}, {}
for i, p in ipairs(request[InspectRequest.partitions]) do
  local pt = load_partition(ctx, p, 7 + (i - 1) * 3)
  if pt then
    local decided = 0
    if bit_length(pt) > 0 then
      decided = redis.call('BITCOUNT', pt.bits_key, pt.base - pt.origin, bit_length(pt) - 1, 'BIT')
    end
    states[i] = {
      [ViewRow.partition] = p, [ViewRow.base] = pt.base, [ViewRow.next] = pt.next, [ViewRow.readable_end] = pt.readable_end,
      [ViewRow.origin] = pt.origin, [ViewRow.decided] = decided, [ViewRow.runs] = runs_text(pt),
      [ViewRow.seen] = pt.seen, [ViewRow.bits] = redis.call('GET', pt.bits_key) or '', [ViewRow.expired] = pt.expired,
      [ViewRow.epoch] = pt.epoch, [ViewRow.truncated] = pt.truncated,
    }
  else
    states[i] = { [ViewRow.partition] = p, [ViewRow.base] = -1 }
  end
end
local all = request[InspectRequest.leases] == 1 and redis.call('HGETALL', KEYS[3]) or {}
for i = 1, #all, 2 do
  local l = unpack_lease(tonumber(all[i]), all[i + 1])
  leases[#leases + 1] = {
    [LeaseRow.token] = l.token, [LeaseRow.partition] = l.p, [LeaseRow.start] = l.s, [LeaseRow.horizon] = l.e,
    [LeaseRow.member] = l.member, [LeaseRow.marks] = l.marks, [LeaseRow.kind] = l.kind,
  }
end
local reply = head(ctx, 'OK')
reply[InspectReply.partitions] = states
reply[InspectReply.leases] = leases
reply[InspectReply.epoch] = cjson.decode(redis.call('HGET', KEYS[1], 'definition')).epoch or 0
return reply
