--- Lanes of a key-ordered subscription. Each partition has as many lanes as the definition says; lane l is
--- the share l % lanes of the keys of partition l / lanes. To the scripts a lane is a partition of its own: records of
--- other keys are gaps in it. A lane has one keeper at a time, which holds every lease on it. The keeper follows from
--- the attached members: they are spread over partitions first, then over the lanes of a partition.
local function is_keyed(ctx)
  return ctx.type == 'key-ordered'
end

--- the member that is to keep a lane; nil if none is attached
local function keeper_to_be(ctx, pt)
  local lanes, count = ctx.policy[Policy.lanes], #ctx.ranks
  if count == 0 then
    return nil
  end
  local partitions = ctx.partitions / lanes
  local p = math.floor(pt.p / lanes)
  if count <= partitions then
    return load_member(ctx, ctx.ranks[p % count + 1])
  end
  local sharing = sharers(count, partitions, p)
  return load_member(ctx, ctx.ranks[p + partitions * math.floor(pt.p % lanes * sharing / lanes) + 1])
end

--- Exceptions without a lease, from the lowest on, due or not: their keeper waits for them, and keeps back what
--- has the same key. Equal in marks and due time. As ready_stretch. from: no such exception ends before it.
local function keyed_stretch(ctx, pt, limit, from)
  local first, stop, marks, due
  look_at_runs(pt, from, function(s, e, m, d, token)
    if token ~= 0 then
      return nil
    end
    s = math.max(s, from)
    d = d <= ctx.now and 0 or d
    if first and (m ~= marks or d ~= due or s - stop > STRETCH_GAP) then
      return true
    end
    if not first then
      limit = math.min(limit, most_together(ctx, m))
    end
    first, marks, due = first or s, m, d
    stop = math.min(e, s + limit)
    limit = limit - (stop - s)
    return limit == 0
  end, true)
  return first, stop, marks, due
end

--- The keeper gives a lane up: nothing of it is in flight, and nothing is dispatched until the reply.
local function give_up_lane(ctx, pt, me)
  if pt.keeper ~= me.id then
    return
  end
  local tokens = {}
  for i, token in ipairs(me.tokens) do
    tokens[i] = token
  end
  for _, token in ipairs(tokens) do
    local l = load_lease(ctx, token)
    if l and l.p == pt.p then
      end_lease(ctx, pt, l, 0)
    end
  end
  pt.keeper = ''
end

--- The first lease of suspects on a lane that its keeper may not dispatch yet, and when its offsets are due; nil: there is none.
function unarmed.first(ctx, pt, m)
  local found, due
  look_at_runs(pt, 0, function(_, _, marks, d, token)
    local l = token ~= 0 and is_suspect(marks) and load_lease(ctx, token)
    if l and l.due == unarmed.DUE and l.member == m.id then
      found, due = l, d
      return true
    end
    return nil
  end)
  return found, due
end

--- Over all its lanes a keeper may dispatch one lease of suspects at a time. It holds further ones unarmed, so that it knows
--- their keys, and dispatches records of other keys meanwhile. They are armed in the order of offsets: a later one may have the
--- same key as an earlier one. before: an offset that is not granted yet, or nil.
function unarmed.arm_next(ctx, pt, m, before)
  local l, due = unarmed.first(ctx, pt, m)
  if l and due <= ctx.now and (not before or l.s < before) then
    l.due = 0
    save_lease(ctx, l)
    m.suspect = l.token
    m.isolated = l.isolated == 1 and l.token or m.isolated
    touch_member(ctx, m)
  end
end

--- Serves one lane. span: offsets that may be read ahead; position: the first that was not looked at.
local function serve_keyed(ctx, pt, position, span)
  if pt.keeper ~= '' and not load_member(ctx, pt.keeper) then
    pt.keeper = ''
  end
  local to = keeper_to_be(ctx, pt)
  if pt.keeper == '' and to then
    pt.keeper = to.id
    want_wake(ctx, to.id)
  end
  if not to or to.id ~= ctx.caller or pt.keeper ~= to.id or span <= 0 then
    return
  end
  local come = pt.xd >= 0 -- exceptions that are to be granted or armed
  local most, has_unarmed = MAX_LEASES + ctx.partitions, come and unarmed.first(ctx, pt, to)
  local s, e, marks, due = keyed_stretch(ctx, pt, span, 0)
  while s and #to.tokens < most do
    local later = is_suspect(marks)
    if later and has_unarmed and #to.tokens >= unarmed.MOST + ctx.partitions then
      break
    end
    grant_runs(ctx, pt, to, s, e, marks, due, later)
    has_unarmed = has_unarmed or later
    s, e, marks, due = keyed_stretch(ctx, pt, span, e)
  end
  if has_unarmed and to.suspect == 0 then
    unarmed.arm_next(ctx, pt, to, s)
  end
  if s then -- an earlier offset is not granted yet
    return
  end
  if come then -- its keeper comes for the next one that is to be armed, and for no other exception
    local _, next_due
    if has_unarmed then
      _, next_due = unarmed.first(ctx, pt, to)
    end
    pt.xd = next_due or -1
  end
  if pt.lane == 0 then
    local l = grant(ctx, pt, to, pt.next, pt.next + span, 0, 'lane')
    pt.lane = l.token
    pt.next = l.e
  elseif position >= 0 then
    local l = load_lease(ctx, pt.lane)
    local horizon = math.min(position, l.e) + span
    if horizon > l.e then
      l.e = horizon
      save_lease(ctx, l)
      pt.next = math.max(pt.next, l.e)
    end
  end
end
