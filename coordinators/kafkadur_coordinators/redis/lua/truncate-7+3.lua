--- Kafka lost the end of partitions (an election of a leader that had not all records): the state of offsets at or beyond
--- that end is forgotten, because other records get these offsets. A new incarnation: every member has to begin anew, since
--- each may have read lost records. Leased offsets go back, uncounted, and cannot be claimed. No lease is granted until all
--- members are back, or the longest session is over: until then they may still dispatch their leased offsets.
-- KEYS     see include/context.lua; three keys for each of its partitions, at most 16
-- ARGV[1]  Request, TruncateRequest
-- Reply    Reply, TruncateReply
-- Codes    OK; MISSING (also: a partition is not known); and those of context.lua
-- Cost     bounded by all leases and members of the subscription: this is rare
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"
--- @shape TruncateRequest

--- Forgets the state at or beyond `from`; returns how many offsets there were known to be readable.
local function cut_off(pt, from)
  local lost = math.max(pt.readable_end - from, 0)
  cut_runs(pt, from)
  undecide_from(pt, from)
  pt.next, pt.readable_end = math.min(pt.next, from), math.min(pt.readable_end, from)
  pt.seen = math.min(pt.seen, from)
  pt.truncated = pt.truncated + lost
  return lost
end

local request = read_request()
if not (request and has_keys(request[TruncateRequest.cuts], Cut.partition)) then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
local touched = load_partitions(ctx, request[TruncateRequest.cuts])
if not touched then
  return head(ctx, 'MISSING')
end
local tokens = {}
for _, l in ipairs(all_leases(ctx)) do
  tokens[l.p] = tokens[l.p] or {}
  tokens[l.p][#tokens[l.p] + 1] = l.token
end
local lost = {}
for i, pt in ipairs(touched) do
  adopt_orphans(ctx, pt)
  for _, token in ipairs(tokens[pt.p] or {}) do
    end_lease_of(ctx, pt, token, 1)
  end
  lost[i] = cut_off(pt, request[TruncateRequest.cuts][i][Cut.first])
  save_partition(pt)
end
local waiting = begin_anew(ctx, request[TruncateRequest.incarnation])
ctx.unclaimed = ctx.incarnation -- records of earlier leases may be lost (reclaim-7+3)
for _, id in ipairs(waiting) do -- their next exchange tells them
  want_wake(ctx, id)
end
finish(ctx)
return head(ctx, 'OK', { [TruncateReply.lost] = lost })
