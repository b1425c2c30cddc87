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
--- @shape InspectRequest

local request = read_request()
if not (request and has_keys(request[InspectRequest.partitions])) then
  return invalid()
end
local ctx, code = open(request)
local token = request[InspectRequest.token]
if code ~= 'OK' and not (code == 'RESTARTED' and token ~= '' and may_rebuild(ctx, token)) then
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
      [PartitionView.partition] = p, [PartitionView.base] = pt.base, [PartitionView.next] = pt.next,
      [PartitionView.readable_end] = pt.readable_end, [PartitionView.origin] = pt.origin,
      [PartitionView.decided] = decided, [PartitionView.runs] = runs_text(pt), [PartitionView.seen] = pt.seen,
      [PartitionView.bits] = redis.call('GET', pt.bits_key) or '', [PartitionView.expired] = pt.expired,
      [PartitionView.epoch] = pt.epoch, [PartitionView.truncated] = pt.truncated,
      [PartitionView.expired_read] = pt.expired_read,
    }
  else
    states[i] = { [PartitionView.partition] = p, [PartitionView.base] = -1 }
  end
end
local all = request[InspectRequest.leases] == 1 and redis.call('HGETALL', KEYS[3]) or {}
for i = 1, #all, 2 do
  local l = unpack_lease(tonumber(all[i]), all[i + 1])
  leases[#leases + 1] = {
    [LeaseView.token] = l.token, [LeaseView.partition] = l.p, [LeaseView.start] = l.s, [LeaseView.horizon] = l.e,
    [LeaseView.member] = l.member, [LeaseView.marks] = l.marks, [LeaseView.kind] = l.kind,
  }
end
return head(ctx, 'OK', {
  [InspectReply.partitions] = states, [InspectReply.leases] = leases,
  [InspectReply.epoch] = cjson.decode(redis.call('HGET', KEYS[1], 'definition')).epoch or 0,
})
