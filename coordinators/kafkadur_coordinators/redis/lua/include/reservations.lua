--- Reservations of shared subscriptions: members that have come to the end of a partition get offsets that are not
--- written yet, so that they need not ask when these come. A reservation is a lease of single offsets at or beyond the
--- readable end, every n-th one where n members share the partition: so records are spread evenly. It takes up no credit,
--- so its member gives it back as soon as it has no room for it. An offset without a reservation is ready as any other
--- once the readable end passes it. Reserved offsets are decided, as exceptions are, and do not hold base back.

--- how many members share a partition, and which of them this one is, from 0 in the order of attaching
local function share_of(ctx, p, me)
  if #ctx.ranks <= ctx.partitions then
    return 1, 0
  end
  local count = sharers(#ctx.ranks, ctx.partitions, p)
  return count, math.max(math.ceil((rank_of(ctx, me.id) - p) / ctx.partitions), 0) % count
end

--- first offset at or beyond the readable end without a lease
local function first_free(pt)
  local s = next_without_lease(pt, pt.readable_end)
  return s and math.max(s, pt.readable_end) or pt.next
end

--- An offset that was given back at the very end is as if it had not been reserved. The end reporter is woken
--- for the others.
local function forget_vacated(ctx, pt)
  local from = pt.next
  local s, e, _, _, token = last_run(pt)
  while s and from > pt.readable_end and token == 0 and e == from do
    from = math.max(s, pt.readable_end)
    run_change(pt, from, e, 0, function() return nil end)
    s, e, _, _, token = last_run(pt)
  end
  if from < pt.next then
    undecide_from(pt, from)
    pt.next = from
  end
  local watcher = store.watcher(ctx, pt.p)
  if watcher then
    want_wake(ctx, watcher)
  end
end

--- Of the offsets at or beyond the readable end without a lease every `stride`-th, those that leave the remainder `index`, from
--- the lowest on: at most `most` with those that the member has.
local function choose_ahead(pt, tokens, stride, index, most)
  local vacant, count = {}, 0
  look_at_runs(pt, pt.readable_end, function(s, e, _, _, token)
    for o = math.max(s, pt.readable_end), e - 1 do
      if tokens[token] then
        count = count + 1
      elseif token == 0 then
        vacant[#vacant + 1] = o
      end
    end
  end)
  local chosen = {}
  local function take(o)
    if count + #chosen >= most then
      return false
    end
    if o % stride == index then
      chosen[#chosen + 1] = o
    end
    return true
  end
  for _, o in ipairs(vacant) do
    take(o)
  end
  local o = pt.next
  while take(o) do
    o = o + 1
  end
  return chosen
end

--- Promises offsets of one partition to the caller; most: how many it is to have there, those it has included.
local function reserve(ctx, pt, me, most)
  if most <= 0 or pt.next < pt.readable_end or me.isolated ~= 0 or me.reservations >= MAX_LEASES then
    return
  end
  local tokens = {}
  for _, token in ipairs(me.tokens) do
    tokens[token] = true
  end
  local stride, index = share_of(ctx, pt.p, me)
  local chosen = choose_ahead(pt, tokens, stride, index, math.min(most, stride == 1 and MOST_AHEAD_ALONE or MOST_AHEAD))
  if #chosen == 0 then
    return
  end
  local l = grant(ctx, pt, me, chosen[1], chosen[#chosen] + 1, 0, 'ahead')
  l.records = #chosen
  save_lease(ctx, l)
  me.reservations = me.reservations + 1
  local i = 1
  while i <= #chosen do
    local o, e = chosen[i], chosen[i] + 1
    if o < pt.next then
      run_change(pt, o, e, 0, function(marks, due)
        return marks, due, l.token
      end)
    else
      while chosen[i + 1] == e do
        i, e = i + 1, e + 1
      end
      run_insert(pt, pt.next, o, 0, 0, 0)
      run_insert(pt, o, e, 0, 0, l.token)
      decide_range(pt, pt.next, e)
      pt.next = e
    end
    i = i + 1
  end
  ready_stretch(ctx, pt, 1) -- offsets without a lease are no reason to come again
end
