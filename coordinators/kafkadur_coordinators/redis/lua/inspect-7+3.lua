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

--- How many offsets at or above base are decided.
local function decided_ahead(pt)
  local count, at = 0, pt.base
  while true do
    local from = next_decided(pt, at, pt.origin + bit_length(pt))
    at = next_undecided(pt, from, pt.origin + bit_length(pt)) or pt.origin + bit_length(pt)
    if at <= from then
      return count
    end
    count = count + (at - from)
  end
end

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
  local pt = load_partition(ctx, p, FIXED_KEYS + 1 + (i - 1) * 3)
  if pt then
    states[i] = {
      [PartitionView.partition] = p, [PartitionView.base] = pt.base, [PartitionView.next] = pt.next,
      [PartitionView.readable_end] = pt.readable_end, [PartitionView.origin] = pt.origin,
      [PartitionView.decided] = decided_ahead(pt), [PartitionView.runs] = runs_text(pt), [PartitionView.seen] = pt.seen,
      [PartitionView.bits] = pt.bits, [PartitionView.expired] = pt.expired,
      [PartitionView.epoch] = pt.epoch, [PartitionView.truncated] = pt.truncated,
      [PartitionView.expired_read] = pt.expired_read,
    }
  else
    states[i] = { [PartitionView.partition] = p, [PartitionView.base] = -1 }
  end
end
for _, l in ipairs(request[InspectRequest.leases] == 1 and all_leases(ctx) or {}) do
  leases[#leases + 1] = {
    [LeaseView.token] = l.token, [LeaseView.partition] = l.p, [LeaseView.start] = l.s, [LeaseView.horizon] = l.e,
    [LeaseView.member] = l.member, [LeaseView.marks] = l.marks, [LeaseView.kind] = l.kind,
    [LeaseView.unarmed] = l.due == unarmed.DUE and 1 or 0,
  }
end
return head(ctx, 'OK', {
  [InspectReply.partitions] = states, [InspectReply.leases] = leases,
  [InspectReply.epoch] = cjson.decode(store.definition(ctx)).epoch or 0,
})
