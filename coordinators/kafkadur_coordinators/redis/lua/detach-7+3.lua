--- A member leaves in order: its leased offsets go back uncounted, at once on the partitions named. Or it is evicted:
--- they go back as those of a member that died. For a member that is not attached, members that died are looked for.
-- KEYS     see include/context.lua; three keys for each of its partitions, at most 16
-- ARGV[1]  Request, DetachRequest
-- Reply    Reply
-- Codes    OK, and those of context.lua
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"
--- @include "serve"
--- @shape DetachRequest

local request = read_request()
if not (request and has_keys(request[DetachRequest.partitions])) then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
local me = load_member(ctx, request[Request.member])
if me then
  remove_member(ctx, me, request[DetachRequest.evicted] == 0)
  for i, p in ipairs(request[DetachRequest.partitions]) do
    local pt = load_partition(ctx, p, FIXED_KEYS + 1 + (i - 1) * 3)
    if pt then
      adopt_orphans(ctx, pt)
      serve(ctx, pt, -1, 0)
      save_partition(pt)
    end
  end
else
  reap(ctx, true)
end
finish(ctx)
return head(ctx, 'OK')
