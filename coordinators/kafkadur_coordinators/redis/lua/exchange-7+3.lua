--- One exchange of a member: verdicts, positions and credit in; leases, horizons and its role out.
-- KEYS     see include/context.lua; three keys for each of its parts, in that order, at most 16
-- ARGV[1]  Request, ExchangeRequest
-- Reply    Reply, ExchangeReply
-- Codes    OK, STALE (an older exchange than the last applied), FENCED (the member is not attached any more, or has attached
--          again since), INVALID (a verdict outside its lease, a partition named twice or more than 16; nothing was changed),
--          and those of context.lua
-- Cost     bounded by the partitions (16), the verdicts carried and the leases of the member (serve.lua)
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"
--- @include "serve"
--- @shape ExchangeRequest

local function inside(l, s, e)
  return s >= l.s and e <= l.e and s <= e
end

--- A blob begins and ends with the bytes that hold the lease's first and last offset; their other bits are 0.
local function blob_inside(l, from, blob)
  local before, behind = l.s - from, from + #blob * 8 - l.e
  if from % 8 ~= 0 or before > 7 or behind > 7 then
    return false
  end
  if before > 0 and string.byte(blob, 1) >= 2 ^ (8 - before) then
    return false
  end
  return behind <= 0 or string.byte(blob, #blob) % 2 ^ behind == 0
end

--- Looks up every lease named and checks every bound before anything is written.
local function check(ctx, me, parts)
  local leases, refused, held, misplaced = {}, {}, {}, false
  for _, token in ipairs(me.tokens) do -- not by the lease's member: it may be of an earlier attachment, an orphan
    held[token] = true
  end
  local function mine(token, p)
    if leases[token] == nil then
      leases[token] = held[token] and load_lease(ctx, token) or false
      if not leases[token] then
        refused[#refused + 1] = token
      end
    end
    misplaced = misplaced or leases[token] and leases[token].p ~= p
    return leases[token]
  end
  for _, part in ipairs(parts) do
    for _, v in ipairs(part[PartitionReport.settled]) do
      local l = mine(v[Settled.token], part[PartitionReport.partition])
      if l then
        if #v[Settled.ranges] % 2 ~= 0 then
          return nil
        end
        for i = 1, #v[Settled.ranges], 2 do
          if not inside(l, v[Settled.ranges][i], v[Settled.ranges][i + 1]) then
            return nil
          end
        end
        if #v[Settled.blob] > 0 and not blob_inside(l, v[Settled.blob_from], v[Settled.blob]) then
          return nil
        end
      end
    end
    for _, v in ipairs(part[PartitionReport.returned]) do
      local l = mine(v[Returned.token], part[PartitionReport.partition])
      if l and not inside(l, v[Returned.start], v[Returned.end]) then
        return nil
      end
    end
    for _, token in ipairs(part[PartitionReport.done]) do
      mine(token, part[PartitionReport.partition])
    end
  end
  if misplaced then
    return nil
  end
  return leases, refused
end

local function apply(ctx, pt, part, leases)
  local before = pt.readable_end
  pt.readable_end = math.max(pt.readable_end, part[PartitionReport.readable_end])
  pt.epoch = math.max(pt.epoch, part[PartitionReport.epoch])
  if pt.recovered < ctx.recovered and ctx.now >= ctx.grace then
    local log_end = part[PartitionReport.log_end]
    pt.seen = math.max(pt.seen, pt.readable_end, log_end)
    pt.recovered = log_end >= 0 and ctx.recovered or pt.recovered
  end
  pt.expired = pt.expired + part[PartitionReport.expired]
  pt.expired_read = pt.expired_read + part[PartitionReport.expired_read]
  for _, v in ipairs(part[PartitionReport.settled]) do
    local l = leases[v[Settled.token]]
    if l then
      for i = 1, #v[Settled.ranges], 2 do
        settle_range(pt, l, v[Settled.ranges][i], v[Settled.ranges][i + 1])
        pt.readable_end = math.max(pt.readable_end, v[Settled.ranges][i + 1])
      end
      if #v[Settled.blob] > 0 then
        settle_blob(pt, l, v[Settled.blob_from], v[Settled.blob])
        pt.readable_end = math.max(pt.readable_end, blob_end(v[Settled.blob_from], v[Settled.blob]))
      end
    end
  end
  for _, v in ipairs(part[PartitionReport.returned]) do
    local l = leases[v[Returned.token]]
    if l then
      give_back(ctx, pt, l, v[Returned.start], v[Returned.end], v[Returned.how], v[Returned.delay])
      if v[Returned.how] > 0 or v[Returned.delay] > 0 then -- it was read
        pt.readable_end = math.max(pt.readable_end, v[Returned.end])
      end
    end
  end
  for _, token in ipairs(part[PartitionReport.done]) do
    if leases[token] then
      end_lease(ctx, pt, leases[token], 1)
    end
  end
  note_reached(pt, before)
end

--- records granted to the member since it wrote this request: they take up credit it did not know was taken
local function unseen(ctx, me, have)
  local records = 0
  for _, token in ipairs(me.tokens) do
    if token > have then
      local l = load_lease(ctx, token)
      records = records + (l and l.kind ~= 'ahead' and l.records or 0)
    end
  end
  return records
end

local function grant_row(l, stretch, alone, due)
  return {
    [GrantRow.token] = l.token, [GrantRow.partition] = l.p, [GrantRow.start] = l.s, [GrantRow.horizon] = l.e,
    [GrantRow.marks] = l.marks, [GrantRow.kind] = l.kind, [GrantRow.seen] = l.seen, [GrantRow.stretch] = stretch,
    [GrantRow.isolated] = alone, [GrantRow.due] = due,
  }
end

--- The leases above `have`. A lease of exceptions is told when its partition is touched: its offsets are stored there. The
--- lane of that partition is told with it, because a member that knew only the lane would dispatch later offsets first.
-- Returns the rows, the partitions with leases that were not told, and the token up to which all leases were told.
local function new_leases(ctx, me, have, touched)
  local new, waits = {}, {}
  for _, token in ipairs(me.tokens) do
    local l = token > have and load_lease(ctx, token)
    if l then
      new[#new + 1] = l
      waits[l.p] = waits[l.p] or in_runs(l) and not touched[l.p]
    end
  end
  local out, untold, known = {}, {}, ctx.token
  for _, l in ipairs(new) do
    if waits[l.p] and (in_runs(l) or l.kind == 'lane') then
      untold[#untold + 1] = l.p
      known = math.min(known, l.token - 1) -- each answer gets further: its partition is touched next
    elseif in_runs(l) then
      local stretch = stretch_of(touched[l.p], l.s, l.e, l.token)
      out[#out + 1] = grant_row(l, stretch, l.isolated, l.due == unarmed.DUE and -1 or math.max(l.due - ctx.now, 0))
    else
      out[#out + 1] = grant_row(l, {}, 0, 0)
    end
  end
  return out, untold, known
end

--- Does the member hold the lanes, and does a better member wait for them?
local function standing(ctx, me, lane)
  if me.isolated < 0 and me.reservations > 0 then
    return 2
  end
  if not lane or ctx.holder ~= me.id then
    return 0
  end
  if ctx.paused == 1 then -- offsets that are not in flight go back
    return #me.tokens > 0 and 2 or 1
  end
  return ctx.type == 'priority' and lane_successor(ctx, me) and 2 or 1
end

--- the same of one lane that has a keeper
local function keeping(ctx, me, pt)
  if pt.keeper ~= me.id then
    return 0
  end
  if is_keyed(ctx) then
    return (ctx.paused == 1 or keeper_to_be(ctx, pt) ~= me) and 2 or 1
  end
  for _, token in ipairs(ctx.paused == 1 and me.tokens or {}) do
    local l = load_lease(ctx, token)
    if l and l.p == pt.p then -- offsets that are not in flight go back
      return 2
    end
  end
  return 1
end

--- The member is back after a restart, and has claimed its offsets in flight (reclaim-7+3). When all former members are
--- back, leases are granted again.
local function note_back(ctx, me)
  ctx.awaited, ctx.lists_changed = without(ctx.awaited, me.id), true
  if #ctx.awaited == 0 then
    ctx.grace = 0
    wake_all(ctx)
  end
end

--- What a member is told: the leases above `have`, and what is known of the touched partitions.
local function answer(ctx, me, have, touched, lane, kept, again, gives_up)
  local by_partition, horizons, states = {}, {}, {}
  for i, pt in ipairs(touched) do
    by_partition[pt.p] = pt
    if pt.lane ~= 0 then
      local l = load_lease(ctx, pt.lane)
      if l and l.member == me.id then
        horizons[#horizons + 1] = { [HorizonRow.token] = l.token, [HorizonRow.horizon] = l.e }
      end
    end
    local due = pt.xd < 0 and -1 or math.max(pt.xd - ctx.now, 0)
    states[i] = {
      [PartitionState.partition] = pt.p, [PartitionState.base] = pt.base, [PartitionState.next] = pt.next,
      [PartitionState.readable_end] = pt.readable_end, [PartitionState.floor] = floor_of(pt), [PartitionState.due_ms] = due,
      [PartitionState.standing] = kept and keeping(ctx, me, pt) or 0,
      [PartitionState.free_from] = first_free(pt), [PartitionState.epoch] = pt.epoch,
      [PartitionState.log_end_unknown] = ctx.now >= ctx.grace and is_log_end_unknown(ctx, pt) and 1 or 0,
    }
  end
  local rank = rank_of(ctx, me.id) or 0
  local told, untold, known = new_leases(ctx, me, have, by_partition)
  local left_over, listed = {}, {}
  local function leave_over(p)
    if not listed[p] then
      listed[p] = true
      left_over[#left_over + 1] = p
    end
  end
  for _, orphan in ipairs(ctx.orphans) do
    leave_over(orphan[Orphan.partition])
  end
  for _, p in ipairs(untold) do
    leave_over(p)
  end
  if me.isolated < 0 and #me.tokens == 0 then
    leave_over(-1 - me.isolated)
  end
  return head(ctx, 'OK', {
    [ExchangeReply.token] = known, -- leases that were not told are asked for again
    [ExchangeReply.silent_ms] = again,
    [ExchangeReply.role] = role_row(ctx, rank),
    [ExchangeReply.grants] = told,
    [ExchangeReply.horizons] = horizons,
    [ExchangeReply.refused] = me.refused,
    [ExchangeReply.partitions] = states,
    [ExchangeReply.watches] = me.watches,
    [ExchangeReply.orphaned] = left_over,
    [ExchangeReply.grace_ms] = math.max(ctx.grace - ctx.now, 0),
    [ExchangeReply.standing] = kept and 1 or standing(ctx, me, lane),
    [ExchangeReply.held] = gives_up and me.tokens or {},
    [ExchangeReply.paused] = ctx.paused == 1 and 1 or 0,
    [ExchangeReply.expiry_ms] = #ctx.ranks > 1 and math.max(ctx.next_expiry - ctx.now, 0) or -1,
    -- first the attempts of the orphans are counted
    [ExchangeReply.outcome_unknown] = ctx.doubt == 1 and #ctx.orphans == 0 and 1 or 0,
    [ExchangeReply.armed] = is_keyed(ctx) and me.suspect or 0,
  })
end

--- The lanes have passed to another member in this exchange. What was granted to it is sent along with its wake, so that it need
-- not make an exchange of its own to learn it. If this is lost, or comes late, its next exchange is told the same.
-- have: highest token before this exchange
local function push(ctx, to, have, touched)
  local told = answer(ctx, to, have, touched, true, false, -1, false)
  ctx.pushes[to.id] = cmsgpack.pack({ [Push.attachment] = to.n, [Push.number] = to.exchange, [Push.reply] = told })
end

--- Applies a new exchange; a repeated one changes nothing. Returns whether there is an answer, and in how many ms a silent
--- member is to be looked at again (-1: there is none). lane: do all lanes have one holder; kept: or has each its own?
local function take(ctx, me, request, touched, lane, kept, handed_over)
  local parts = request[ExchangeRequest.parts]
  if request[ExchangeRequest.number] == me.exchange then
    return true, -1
  end
  local again, had = -1, ctx.token
  local leases, refused = check(ctx, me, parts)
  if not leases then
    return nil
  end
  local was_full = me.credit == 0
  me.exchange, me.refused = request[ExchangeRequest.number], refused
  me.expiry = ctx.now + me.ttl
  me.credit = math.max(request[ExchangeRequest.credit] - unseen(ctx, me, request[ExchangeRequest.have]), 0)
  me.silent = 0
  me.reads_on = request[ExchangeRequest.reads_on] == 1 and not lane and not kept -- not stored
  touch_member(ctx, me)
  if #ctx.awaited > 0 then
    note_back(ctx, me)
  end
  if not lane and not kept then
    set_hungry(ctx, me)
  end
  if ctx.next_expiry <= ctx.now or request[ExchangeRequest.ask_presence] == 1 then
    again = reap(ctx, request[ExchangeRequest.ask_presence] == 1)
  end
  for i, pt in ipairs(touched) do
    apply(ctx, pt, parts[i], leases)
    if #parts[i][PartitionReport.settled] > 0 or #parts[i][PartitionReport.returned] > 0 then
      ctx.verdict = ctx.now
    end
    adopt_orphans(ctx, pt)
    bound_bitmap(ctx, pt)
    if parts[i][PartitionReport.drained] == 1 and is_keyed(ctx) then
      give_up_lane(ctx, pt, me)
    elseif parts[i][PartitionReport.drained] == 1 and kept and ctx.now >= ctx.grace then
      pass_own_turn(ctx, pt, me, parts[i][PartitionReport.position], request[ExchangeRequest.span] == 0)
    end
  end
  if handed_over and ctx.now >= ctx.grace then
    local positions = {}
    for i, part in ipairs(parts) do
      positions[i] = part[PartitionReport.position]
    end
    pass_turn(ctx, me, touched, positions)
  end
  local function serve_part(i, pt)
    local part = parts[i]
    local may_pass = handed_over or part[PartitionReport.drained] == 1
    serve(ctx, pt, part[PartitionReport.position], request[ExchangeRequest.span], may_pass)
  end
  local freed = false
  for i, pt in ipairs(touched) do
    serve_part(i, pt)
    if me.isolated == -1 - pt.p and #me.tokens == 0 then -- the last attempt that it was kept free for is gone
      me.isolated, freed = 0, true
    end
  end
  for i, pt in ipairs(touched) do
    if freed then -- it may get other offsets again
      serve_part(i, pt)
    end
    if not lane and not kept then
      settle_watch(ctx, pt.p, me)
      if may_grant(ctx, pt) then
        reserve(ctx, pt, me, parts[i][PartitionReport.reserve])
      end
    end
    save_partition(pt)
  end
  if was_full and me.credit > 0 and has_own_turns(ctx) then
    ask_the_full(ctx)
  end
  if lane then
    lane_holder(ctx) -- also when no partition was touched: the chosen member must be woken
    if ctx.passed_to and #ctx.passed_to.tokens > 0 then
      push(ctx, ctx.passed_to, had, touched)
    end
  elseif not kept then
    adopt_unwatched(ctx, me)
    if me.reads_on then -- until its next exchange it is granted nothing
      me.credit = 0
      set_hungry(ctx, me)
    end
  end
  finish(ctx)
  return true, again
end

local request = read_request()
if not (request and has_keys(request[ExchangeRequest.parts], PartitionReport.partition)) then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
local me = load_member(ctx, request[Request.member])
if not me or me.n ~= request[ExchangeRequest.attachment] then -- an earlier attachment's exchange may be late
  return head(ctx, 'FENCED')
end
if request[ExchangeRequest.number] < me.exchange then
  return head(ctx, 'STALE')
end
local parts = request[ExchangeRequest.parts]
local touched = load_partitions(ctx, parts)
if not touched then
  return head(ctx, 'MISSING')
end

local lane, kept = is_lane(ctx) and me.kind == '', is_keyed(ctx) or has_own_turns(ctx)
local handed_over, given_up = lane and request[ExchangeRequest.handover] == 1, false
for _, part in ipairs(parts) do
  given_up = given_up or kept and part[PartitionReport.drained] == 1
end
local taken, again = take(ctx, me, request, touched, lane, kept, handed_over)
if not taken then
  return head(ctx, 'INVALID')
end
return answer(ctx, me, request[ExchangeRequest.have], touched, lane, kept, again, handed_over or given_up)
