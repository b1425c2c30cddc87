--- A member that is attached again after a loss claims messages that are still in flight: offsets of leases
--- of an earlier incarnation. While no lease is granted (grace) they become leases of this one, so that they need not be
--- delivered again. The member with the higher token of an offset, or of a lane, gets it. Leases from before Kafka lost the
--- end of a partition (truncate-7+3) cannot be claimed: their records may be lost. Nor can those of a member that this state
--- does not know as attached and that other processes did not hear until the loss: another member may have settled them.
-- KEYS     see include/context.lua; three keys for each of its partitions, at most 16
-- ARGV[1]  Request, ReclaimRequest
-- Reply    Reply, ReclaimReply; the settled offsets of a claim are those acknowledged in time: none when leases are
--          granted again, because another member may have settled them
-- Codes    OK; FENCED: the member is not attached (any more); INVALID; MISSING; and those of context.lua
-- Cost     the claimed runs, and for each claim all leases, of which there are few: only claimed ones
-- Repeats  are answered again, also when leases are granted already
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"
--- @include "serve"
--- @shape ReclaimRequest

-- how far beyond what this state knows messages can have been delivered: the state lacks the last moments
local MOST_AHEAD_OF_STATE = 2 ^ 31

--- Are the pairs of a claim ranges, in order, and not far beyond what is known of the partition?
local function in_order(pairs_, pt)
  local last = 0
  for i = 1, #pairs_, 2 do
    local s, e = pairs_[i], pairs_[i + 1]
    if not e or s < last or e <= s or e > pt.next + MOST_AHEAD_OF_STATE then
      return false
    end
    last = e
  end
  return #pairs_ > 0
end

--- Was `other` granted before `claim`?
local function is_below(other, claim)
  local earlier = other[Claim.incarnation] - claim[Claim.incarnation]
  return earlier < 0 or earlier == 0 and other[Claim.token] < claim[Claim.token]
end

--- What other members claimed: claims, each with its partition, and with the lease that was made of it, nil when that has
--- ended. Also all that were made (Made).
local function claimed_by_others(ctx, me)
  local all, others = store.claims(), {}
  for _, made in ipairs(all) do
    local l = load_lease(ctx, made[Made.token])
    local member = made[Made.member] or l and l.member -- nil: an earlier version wrote it, and its lease has ended
    if member and member ~= me.id then
      others[#others + 1] = {
        [Claim.incarnation] = made[Made.incarnation], [Claim.token] = made[Made.claimed],
        [Claim.held] = made[Made.held] or {}, p = made[Made.partition] or l.p, lease = l,
      }
    end
  end
  return others, all
end

--- Ranges without the parts that other ranges cover; all are pairs, in order.
local function uncovered(ranges, others)
  local left = {}
  for i = 1, #ranges, 2 do
    local s, e = ranges[i], ranges[i + 1]
    for j = 1, #others, 2 do
      if others[j] > s and s < e then
        left[#left + 1], left[#left + 2] = s, math.min(others[j], e)
      end
      s = math.max(s, others[j + 1])
    end
    if s < e then
      left[#left + 1], left[#left + 2] = s, e
    end
  end
  return left
end

--- The ranges of a claim that no other member claimed by a later lease. Claims whose lease has ended count, too: its holder
--- may have given the messages back, and then an earlier holder must not settle them.
local function left_to(claim, p, others)
  local left = claim[Claim.held]
  for _, other in ipairs(others) do
    if other.p == p and not is_below(other, claim) then
      left = uncovered(left, other[Claim.held])
    end
  end
  return left
end

--- A lane has one holder: the member with the highest token of it. Ends the leases that others claimed of it; nil if
--- that member is not `me`.
local function takes_lane(ctx, me, pt, claim, others)
  local apart = is_keyed(ctx) or has_own_turns(ctx)
  if not apart and not is_lane(ctx) then
    return true
  end
  for _, other in ipairs(others) do
    if (not apart or other.p == pt.p) and not is_below(other, claim) then
      return nil
    end
  end
  for _, other in ipairs(others) do
    local l = other.lease and load_lease(ctx, other.lease.token)
    if l and l.p == pt.p then
      end_lease(ctx, pt, l, 1)
    elseif l and not apart then
      add_orphan(ctx, l.token, 1, l.p)
      local m = load_member(ctx, l.member)
      if m and drop_token(m, l.token) then
        touch_member(ctx, m)
      end
    end
  end
  if apart then
    pt.keeper = me.id
  else
    ctx.holder = me.id
  end
  return true
end

--- The settled parts of these ranges: each decided offset is an exception here, or settled.
local function settled_of(pt, pairs_)
  local out = {}
  for i = 1, #pairs_, 2 do
    local from, to = pairs_[i], math.min(pairs_[i + 1], pt.next)
    local exceptions = {}
    look_at_runs(pt, from, function(s, e)
      if s >= to then
        return true
      end
      exceptions[#exceptions + 1], exceptions[#exceptions + 2] = s, e
      return nil
    end)
    for _, offset in ipairs(uncovered({ from, to }, exceptions)) do
      out[#out + 1] = offset
    end
  end
  return out
end

--- Claims one lease; returns its new token and its offsets.
local function reclaim(ctx, me, pt, claim, others)
  if #me.tokens >= MAX_LEASES or not takes_lane(ctx, me, pt, claim, others) then
    return 0, {}
  end
  local pairs_ = claim[Claim.held]
  local s, e = pairs_[1], pairs_[#pairs_]
  if e > pt.next then -- what this state never heard of was granted, too: it is not settled, and may have been delivered
    local from = pt.next
    pt.next, pt.readable_end = e, math.max(pt.readable_end, e)
    set_aside(pt, from, e, 1, 0, 0)
  end
  local token, count, beaten, left = ctx.token + 1, 0, {}, left_to(claim, pt.p, others)
  local function to_me()
    return claim[Claim.marks], 0, token
  end
  for i = 1, #left, 2 do
    count = count + run_change(pt, left[i], left[i + 1], 0, to_me)
    for _, other in ipairs(others) do
      if other.lease and other.p == pt.p and is_below(other, claim) then
        local taken = run_change(pt, left[i], left[i + 1], other.lease.token, to_me)
        if taken > 0 then
          beaten[#beaten + 1] = other.lease.token
        end
        count = count + taken
      end
    end
  end
  for _, lower in ipairs(beaten) do -- else its holder could settle offsets that it does not hold any more
    end_lease_of(ctx, pt, lower, 1)
  end
  if count == 0 then
    return 0, {}
  end
  ctx.token = token
  save_lease(ctx, {
    token = token, p = pt.p, s = s, e = e, member = me.id, marks = claim[Claim.marks], kind = 'runs', records = count,
    seen = pt.seen, isolated = 0, due = 0,
  })
  me.tokens[#me.tokens + 1] = token
  touch_member(ctx, me)
  return token, (stretch_of(pt, s, e, token))
end

--- Has anything in common with a list of pairs another one has?
local function overlap(one, other)
  for i = 1, #one, 2 do
    for j = 1, #other, 2 do
      if one[i] < other[j + 1] and other[j] < one[i + 1] then
        return true
      end
    end
  end
  return false
end

--- Was the member attached when the new incarnation began? The script is called before the member's first exchange, which
--- takes it off the list of awaited members.
local function was_attached(ctx, me)
  return #without(ctx.awaited, me.id) < #ctx.awaited
end

--- What this very claim got before: its answer was lost, and the member asks again; nil if it got nothing. It must not be
--- told as a new lease later: its messages are in flight.
local function granted_before(ctx, me, pt, claim, all)
  for _, made in ipairs(all) do
    local l = made[Made.incarnation] == claim[Claim.incarnation] and made[Made.claimed] == claim[Claim.token]
      and load_lease(ctx, made[Made.token])
    if l and l.member == me.id and l.p == pt.p then
      local held = stretch_of(pt, l.s, l.e, l.token)
      if overlap(held, claim[Claim.held]) then
        return l.token, held
      end
    end
  end
  return nil
end

--- Claims all that the request names. Returns for each partition what became of each claim.
local function claim_all(ctx, me, request, touched)
  local parts = request[ReclaimRequest.parts]
  local granted = {}
  local others, all = claimed_by_others(ctx, me)
  local attached = was_attached(ctx, me) and 1 or 0
  local may_have_them = attached == 1 or request[ReclaimRequest.heard] == 1
  for i, pt in ipairs(touched) do
    granted[i] = {}
    adopt_orphans(ctx, pt)
    for j, claim in ipairs(parts[i][PartClaims.claims]) do
      local token, held = granted_before(ctx, me, pt, claim, all)
      -- else another member may have been granted them
      if not token and may_have_them and ctx.now < ctx.grace and claim[Claim.incarnation] >= ctx.unclaimed then
        token, held = reclaim(ctx, me, pt, claim, others)
        if token > 0 then
          all[#all + 1] = {
            [Made.token] = token, [Made.incarnation] = claim[Claim.incarnation], [Made.claimed] = claim[Claim.token],
            [Made.member] = me.id, [Made.partition] = pt.p, [Made.held] = claim[Claim.held],
          }
        end
      end
      granted[i][j] = {
        [Claimed.token] = token or 0, [Claimed.held] = held or {},
        [Claimed.settled] = ctx.now < ctx.grace and settled_of(pt, claim[Claim.held]) or {},
        [Claimed.attached] = attached,
      }
    end
    save_partition(pt)
  end
  store.put_claims(ctx, all)
  return granted
end

local request = read_request()
if not (request and has_keys(request[ReclaimRequest.parts], PartClaims.partition)) then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
local me = load_member(ctx, request[Request.member])
if not me or me.n ~= request[ReclaimRequest.attachment] then
  return head(ctx, 'FENCED')
end
local parts = request[ReclaimRequest.parts]
local touched = load_partitions(ctx, parts)
if not touched then
  return head(ctx, 'MISSING')
end
for i, part in ipairs(parts) do
  for _, claim in ipairs(part[PartClaims.claims]) do
    if not in_order(claim[Claim.held], touched[i]) then
      return head(ctx, 'INVALID')
    end
  end
end

local granted = claim_all(ctx, me, request, touched)
finish(ctx)
return head(ctx, 'OK', { [ReclaimReply.claimed] = granted })
