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
--- has the same key. Equal in marks and due time. As ready_stretch.
local function keyed_stretch(ctx, pt, limit)
  local first, stop, marks, due
  look_at_runs(pt, 0, function(s, e, m, d, token)
    if token ~= 0 then
      return nil
    end
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
  local s, e, marks, due = keyed_stretch(ctx, pt, span)
  while s and #to.tokens < MAX_LEASES + ctx.partitions do
    if is_suspect(marks) and to.suspect ~= 0 then
      return
    end
    grant_runs(ctx, pt, to, s, e, marks, due)
    s, e, marks, due = keyed_stretch(ctx, pt, span)
  end
  if s then -- an earlier offset is not granted yet
    return
  end
  pt.xd = -1 -- no member need come for an exception
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
