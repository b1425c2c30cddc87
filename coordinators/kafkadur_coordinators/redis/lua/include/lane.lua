--- A lane: an ordered stretch of work with one holder at a time. The subscription's type chooses the holder (choose_*.lua);
--- here the lane is served and passed on.
local CHOOSE = { exclusive = choose_exclusive, priority = choose_priority, serial = choose_serial }
local SUCCESSOR = { priority = preempting, serial = next_in_turn }

--- Do partitions pass individually (scope 'partition')? Not while a member holds the whole subscription.
local function has_own_turns(ctx)
  if ctx.own_turns == nil then
    local first = ctx.ranks[1] and load_member(ctx, ctx.ranks[1])
    ctx.own_turns = ctx.type == 'serial' and ctx.policy[Policy.own_turns] == 1
      and not (first and first.kind == 'whole')
  end
  return ctx.own_turns
end

--- Do all lanes have one holder?
local function is_lane(ctx)
  return CHOOSE[ctx.type] ~= nil and not has_own_turns(ctx)
end

--- the holder of the lanes; chosen anew when it is gone
local function lane_holder(ctx)
  if ctx.lane_holder == nil then
    local m = CHOOSE[ctx.type](ctx)
    ctx.lane_holder = m or false
    if m and ctx.holder ~= m.id then
      ctx.holder = m.id
      want_wake(ctx, m.id)
    end
  end
  return ctx.lane_holder or nil
end

--- the member that is to have the lanes after their holder; nil if there is none
local function lane_successor(ctx, holder)
  if ctx.lane_successor == nil then
    local choose = SUCCESSOR[ctx.type]
    ctx.lane_successor = choose and choose(ctx, holder) or false
  end
  return ctx.lane_successor or nil
end

--- In strict order: do later offsets wait for an exception without a lease?
local function waits_for_due(ctx, pt)
  return ctx.policy[Policy.strict] == 1 and next_without_lease(pt, 0) ~= nil
end

--- Serves the holder of one partition of a lane: in its own exchange, or in the exchange that passes the lanes to it.
-- position: the first offset that the holder has not dispatched (-1: unknown, it does not follow yet).
-- span: window + unconfirmed budget, records. The horizon is the dispatch bound: it never falls within
-- a token, and runs ahead of the position by span, also over offsets not written yet - unless others wait for
-- their turn: later offsets may be theirs. handed_over: the holder dispatches nothing until it has the reply, so the offsets
-- that it has not dispatched can be taken back.
local function serve_lane(ctx, pt, m, position, span, handed_over)
  if span <= 0 then -- the member is leaving
    return
  end
  local left = span
  local s, e, marks = ready_stretch(ctx, pt, left)
  while s and left > 0 and #m.tokens < MAX_LEASES + ctx.partitions do -- each partition has its lane
    if is_suspect(marks) and m.suspect ~= 0 then
      break
    end
    left = left - grant_runs(ctx, pt, m, s, e, marks).records
    s, e, marks = ready_stretch(ctx, pt, left)
  end
  if s or waits_for_due(ctx, pt) then -- an earlier offset is not granted yet
    return
  end
  local bound = ctx.type == 'serial' and lane_successor(ctx, m) and pt.readable_end or math.huge
  if pt.lane == 0 then
    local horizon = math.min(pt.next + span, bound)
    if horizon > pt.next then
      local l = grant(ctx, pt, m, pt.next, horizon, 0, 'lane')
      pt.lane = l.token
      pt.next = l.e
    end
  elseif position >= 0 then
    local l = load_lease(ctx, pt.lane)
    local horizon = math.min(math.min(position, l.e) + span, bound)
    if horizon > l.e then
      l.e = horizon
      save_lease(ctx, l)
      pt.next = math.max(pt.next, l.e)
    elseif handed_over and bound < math.huge then
      end_lease(ctx, pt, l, 0) -- nothing to dispatch: later offsets may be for the next holder
    end
  end
end

--- Could an offset of this partition be dispatched now, if its lane were free?
local function deliverable(ctx, pt, position)
  if is_log_end_unknown(ctx, pt) then
    return false
  end
  local from = (pt.lane ~= 0 and position >= 0) and position or pt.next
  if ready_stretch(ctx, pt, 1) then
    return true
  end
  return pt.readable_end > from and not waits_for_due(ctx, pt)
end

--- The holder offers its lanes: nothing of them is in flight, and nothing is dispatched until it has the
--- reply. They pass to the next member; on a serial subscription only if a message can be delivered to it. While the
--- subscription is paused they end.
-- Returns whether they did. Leased offsets that were not dispatched are as if they had not been leased.
local function pass_turn(ctx, me, touched, positions)
  local holder = lane_holder(ctx)
  local paused = ctx.paused == 1 -- then they pass to no member, and this one may have them again
  local to = holder and holder.id == me.id and (paused and holder or lane_successor(ctx, me))
  if not to then
    return false
  end
  local some = ctx.type ~= 'serial' or paused
  for i, pt in ipairs(touched) do
    some = some or deliverable(ctx, pt, positions[i])
  end
  if not some then
    return false
  end
  local by_partition, tokens = {}, me.tokens
  for _, pt in ipairs(touched) do
    by_partition[pt.p] = pt
  end
  me.tokens, me.isolated, me.suspect, me.reservations = {}, 0, 0, 0
  for _, token in ipairs(tokens) do
    local l = load_lease(ctx, token)
    if l and by_partition[l.p] then
      end_lease(ctx, by_partition[l.p], l, 0)
    elseif l then
      add_orphan(ctx, token, 0, l.p)
    end
  end
  touch_member(ctx, me)
  if to.id ~= me.id then
    ctx.holder = to.id
    ctx.lane_holder, ctx.lane_successor = to, nil
    want_wake(ctx, to.id)
    if ctx.type == 'serial' and to.kind == '' and #to.tokens == 0 then -- it is told what is granted to it with its wake
      ctx.passed_to = to
    end
  end
  return true
end
