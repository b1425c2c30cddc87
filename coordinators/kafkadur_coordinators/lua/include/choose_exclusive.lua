--- The next holder of a lane of type exclusive: the one member there is.
local function choose_exclusive(ctx)
  return ctx.ranks[1] and load_member(ctx, ctx.ranks[1])
end

--- Serves one partition of a lane. Only its holder is served, in its own exchange.
-- position: the first offset that the holder has not handed out (-1: unknown, it does not follow yet).
-- span: window + unconfirmed budget, records. The horizon is the dispatch bound: it never falls within
-- a token, and runs ahead of the position by span, also over offsets not written yet.
local function serve_lane(ctx, pt, m, position, span)
  if span <= 0 then -- the member is leaving
    return
  end
  local left = span
  while left > 0 and #m.tokens < MAX_LEASES + ctx.partitions do -- each partition has its lane
    local l = grant_runs(ctx, pt, m, left)
    if not l then
      break
    end
    left = left - l.records
  end
  if pt.lane == 0 then
    local l = grant(ctx, pt, m, pt.next, pt.next + span, 0, 'lane')
    pt.lane = l.token
    pt.next = l.e
  elseif position >= 0 then
    local l = load_lease(ctx, pt.lane)
    local horizon = math.min(position, l.e) + span
    if horizon > l.e then
      l.e = horizon
      save_lease(l)
      pt.next = math.max(pt.next, l.e)
    end
  end
end
