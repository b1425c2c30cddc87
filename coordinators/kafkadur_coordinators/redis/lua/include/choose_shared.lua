--- The next holder of a range of type shared: round-robin over the members with free credit, starting
--- with the first attached. Members that are at home with the partition come first; a member that holds
--- nothing at all gets work of other partitions when no member that prefers them has room, unless it reads on in its own.
--- Members of the kind claims ask rarely and for much. They count as preferring every partition, and all members take the
--- partitions that only they prefer.
-- Suspects (redelivery.lua) go to a member that has no others; a last attempt to one that holds nothing at all and
-- gets nothing else: one is kept free for it if there is none. A member that takes stretches at once gets them in any case.
-- Returns the member and how many members could have been chosen; nil if none has room.
--- marks: of the exceptions that are to be served; 0 for new offsets
local function choose_shared(ctx, pt, marks)
  local last, suspects = is_last_attempt(ctx, marks), is_suspect(marks)
  local chosen, idle, count, kept = nil, nil, 0, false
  for _, id in ipairs(first_hungry(ctx)) do
    local m = load_member(ctx, id)
    if not m then
      drop_hungry(ctx, id)
    elseif m.isolated == -1 - pt.p then
      kept = (id == ctx.caller or is_heard(ctx, id)) and m or kept -- a member that may be dead must not use the attempt up
    elseif m.isolated == 0 and m.credit > 0 and #m.tokens - m.reservations < MAX_LEASES
      and (id == ctx.caller or is_heard(ctx, id)) then
      local rank = rank_of(ctx, id)
      local working = #m.tokens > m.reservations
      if m.kind == '' and ((last and #m.tokens > 0) or (suspects and m.suspect ~= 0)) then
        idle = idle or last and m or nil
      elseif last or m.kind ~= '' or rank and (at_home(ctx, pt.p, rank) or is_everybodys(ctx, pt.p)) then
        chosen = chosen or m
        count = count + 1
      elseif not working and not m.reads_on then
        idle = idle or m
      end
    end
  end
  if not last then
    if not chosen and idle then
      return idle, 1
    end
    return chosen, count
  end
  if kept and #kept.tokens == 0 then
    return kept, 1
  end
  if not kept and not chosen and idle then -- it gets nothing more until what it holds is settled
    idle.isolated = -1 - pt.p
    touch_member(ctx, idle)
    want_wake(ctx, idle.id)
  end
  return not kept and chosen or nil, 1
end

local function spend(ctx, m, records)
  m.credit = math.max(m.credit - records, 0)
  ctx.served = ctx.served + 1
  m.served = ctx.served
  set_hungry(ctx, m)
  touch_member(ctx, m)
end

--- Serves one partition of a shared subscription: exceptions that are due first, then new offsets.
-- A share is the number of ready offsets divided by the number of members with room: one message each in a trickle, all
-- free credit in a backlog.
local function serve_shared(ctx, pt)
  local share
  for _ = 1, MAX_GRANTS do
    local fresh = math.max(pt.readable_end - pt.next, 0)
    local due, _, marks = ready_stretch(ctx, pt, 1)
    if fresh == 0 and not due then
      return
    end
    local l, count
    local m = due and choose_shared(ctx, pt, marks)
    if m then
      l = grant_runs(ctx, pt, m, ready_stretch(ctx, pt, m.credit, m.kind ~= ''))
    elseif fresh > 0 then
      m, count = choose_shared(ctx, pt, 0)
      if m then
        share = share or math.ceil(fresh / count)
        l = grant(ctx, pt, m, pt.next, pt.next + math.min(m.credit, share, fresh), 0, 'range')
        pt.next = l.e
      end
    end
    if not l then
      return
    end
    spend(ctx, m, l.records)
  end
end
