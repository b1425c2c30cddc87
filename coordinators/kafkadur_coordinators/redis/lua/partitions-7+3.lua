--- Gives partitions their first state: before the definition is installed, when the topic has grown, or when the
--- subscription is moved or laid anew. The leases of members that are gone on them are forgotten then.
-- KEYS     see include/context.lua; three keys for each of its partitions, at most 16
-- ARGV[1]  Request, PartitionsRequest
-- Reply    Reply
-- Codes    OK; CHANGED: the change or rebuild is not (any more) this caller's; and those of context.lua
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"
--- @shape PartitionsRequest

--- The state of a partition of which nothing is leased; its keys begin with KEYS[key].
local function lay_partition(part, key, layout)
  local first, runs = part[Laid.first], part[Laid.runs]
  local pt = {
    p = part[Laid.partition], key = key, base = first, next = first, readable_end = first, origin = first - first % 8,
    xd = part[Laid.due_at], seen = part[Laid.seen], lane = 0, keeper = '', expired = 0, recovered = 0, epoch = -1,
    truncated = 0, expired_read = 0, bits = '', index = '', blocks = {}, changed_blocks = {}, changed = true,
    block_runs = layout == VERSION_BEFORE and ONE_BLOCK or nil,
  }
  if runs ~= '' then
    pt.index = blocks.cut(pt, run_in(runs, 1), runs, math.max(pt.xd, 0))
  end
  return pt
end

local request = read_request()
if not (request and has_keys(request[PartitionsRequest.partitions], Laid.partition)) then
  return invalid()
end
local ctx, code = open(request)
local token = request[PartitionsRequest.token]
local growing = token == ''
if growing and code ~= 'OK' or code == 'VERSION' then
  return head(ctx, code)
end
if not growing and ctx.changing ~= token and not may_rebuild(ctx, token) then
  return head(ctx, 'CHANGED')
end
local aside = request[PartitionsRequest.aside] == 1
local laid, layout = {}, aside and request[Request.state_version] or ctx.layout
for i, part in ipairs(request[PartitionsRequest.partitions]) do
  laid[i] = lay_partition(part, FIXED_KEYS + 1 + (i - 1) * 3, layout)
end
if aside then
  store.lay(layout, token, laid)
  return head(ctx, 'OK')
end
if code == 'MISSING' then
  return head(ctx, code)
end
local moved = {}
for _, pt in ipairs(laid) do
  if not growing or not load_partition(ctx, pt.p, pt.key) then -- else another member has laid it
    moved[pt.p] = true
    store.remove_partition(ctx, pt)
    ctx.partitions_read[#ctx.partitions_read + 1] = pt
  end
end
local rest = {}
for _, orphan in ipairs(ctx.orphans) do
  if moved[orphan[Orphan.partition]] then
    drop_lease(ctx, orphan[Orphan.token])
  else
    rest[#rest + 1] = orphan
  end
end
ctx.lists_changed, ctx.orphans = #rest < #ctx.orphans, rest
if growing and request[PartitionsRequest.total] > ctx.partitions then
  ctx.partitions = request[PartitionsRequest.total]
  wake_all(ctx) -- each member learns it with its next exchange
end
finish(ctx)
return head(ctx, 'OK')
