--- One touched partition: its state, its leases, settling and giving back.
-- A lease is a LeaseRow (../rows.py). Its kind is 'range' (fixed horizon), 'lane' (extended while it is held), 'runs'
-- (exceptions: of [start, horizon) it holds the runs with its token) or 'ahead' (as runs, but of offsets that are not
-- written yet: reservations.lua).
local IN_ORDER = { exclusive = true, priority = true, serial = true }
local CONVERT_RUNS = 256 -- in one script call: the next one goes on

--- The partition of this number, whose keys begin with KEYS[first_key]; nil if it has no state.
local function load_partition(ctx, p, first_key)
  local pt = store.partition(ctx, p, first_key)
  ctx.partitions_read[#ctx.partitions_read + 1] = pt
  return pt
end

--- The partitions that a request touches, each part beginning with its number; nil if one has no state.
local function load_partitions(ctx, parts)
  local touched = {}
  for i, part in ipairs(parts) do
    touched[i] = load_partition(ctx, part[PartitionReport.partition], FIXED_KEYS + 1 + (i - 1) * 3)
    if not touched[i] then
      return nil
    end
  end
  return touched
end

--- Is it unknown how far the partition was delivered before the state was lost? Old members did not notice the loss, and went
--- on until their sessions ended: only the end of the log after that is a bound.
local function is_log_end_unknown(ctx, pt)
  return pt.recovered < ctx.recovered
end

--- It is written at the end of the script.
local function save_partition(pt)
  pt.changed = true
end

--- lowest unsettled offset
local function floor_of(pt)
  return math.min(first_run(pt) or pt.base, pt.base)
end

--- Does it hold runs with its token, not all of [start, horizon)?
local function in_runs(l)
  return l.kind == 'runs' or l.kind == 'ahead'
end

--- Moves the undecided offsets of [s, e) into the exceptions; base may move over them then.
local function set_aside(pt, s, e, marks, due, token)
  local from = next_undecided(pt, s, e)
  while from do
    local to = next_decided(pt, from, e)
    run_insert(pt, from, to, marks, due, token)
    decide_range(pt, from, to)
    from = next_undecided(pt, to, e)
  end
end

--- Settles [s, e) of a lease.
local function settle_range(pt, l, s, e)
  run_change(pt, s, e, l.token, function() return nil end)
  if not in_runs(l) then
    decide_range(pt, s, e)
  end
end

--- Settles the one-bits of a blob whose first bit is offset `from`.
local function settle_blob(pt, l, from, blob)
  run_change(pt, from, from + #blob * 8, l.token, function(marks, due, s, e)
    local pieces, kept = {}, s
    for o = s, e - 1 do
      local byte = string.byte(blob, math.floor((o - from) / 8) + 1)
      if bit.band(byte, bit.rshift(128, (o - from) % 8)) ~= 0 then
        pieces[#pieces + 1] = run_text(kept, o, marks, due, l.token)
        kept = o + 1
      end
    end
    pieces[#pieces + 1] = run_text(kept, e, marks, due, l.token)
    return table.concat(pieces)
  end)
  if not in_runs(l) then
    decide_blob(pt, from, blob)
  end
end

--- Gives [s, e) of a lease back. how: see returned_marks; delay: ms until it comes again, -1: as the policy says.
--- Undispatched offsets at the end of the granted ones are as if they had not been granted, unless they have a delay.
local function give_back(ctx, pt, l, s, e, how, delay)
  if how == 0 and s < pt.readable_end and pt.readable_end < e then -- unwritten offsets must not become exceptions
    give_back(ctx, pt, l, pt.readable_end, e, how, delay)
    e = pt.readable_end
  end
  run_change(pt, s, e, l.token, function(marks, due)
    local m = returned_marks(ctx, marks, how)
    return m, math.max(how < 2 and due or 0, due_after(ctx, m, s, delay)), 0
  end)
  if in_runs(l) then
    pt.vacated = pt.vacated or e > pt.readable_end
    return
  end
  if how == 0 and delay <= 0 and e >= pt.next and next_decided(pt, math.max(s, pt.base), pt.next) == pt.next then
    pt.next = math.max(s, pt.base)
    if l.e > pt.next then -- the end of a lane that goes on is next
      l.e = math.max(pt.next, l.s)
      save_lease(ctx, l)
    end
    return
  end
  local marks = returned_marks(ctx, 0, how)
  set_aside(pt, s, math.min(e, pt.next), marks, due_after(ctx, marks, s, delay), 0)
end

--- Ends a lease. how: 0 nothing of it was dispatched, 1 in order, 2 uncleanly: offsets that may have been delivered count
--- an attempt, 4 uncleanly by a member that takes stretches at once. Offsets at or beyond the readable end were reserved:
--- they are only marked (pt.seen).
local function end_lease(ctx, pt, l, how)
  local delay = 0
  if l.due > ctx.now then -- its holder still waited for it
    how = 0
  end
  if how == 2 or how == 4 then
    how = l.isolated == 1 and 2 or how == 4 and 4 or 3
    -- offsets delivered in order come again at once, unless they hold others back
    delay = (not IN_ORDER[ctx.type] or ctx.policy[Policy.strict] == 1) and -1 or 0
  end
  local known = math.max(math.min(l.e, pt.readable_end), math.min(l.s, l.e))
  if l.e > known then
    if how >= 2 then
      pt.seen = math.max(pt.seen, l.e)
    end
    give_back(ctx, pt, l, known, l.e, 0, 0)
  end
  local s = l.s
  if how == 0 and not in_runs(l) then -- decided offsets must not keep the rest from being as if never granted
    local from = next_undecided(pt, math.max(s, pt.base), known) or known
    -- before it there may be offsets set aside under this token
    run_change(pt, s, from, l.token, function(marks, due) return marks, due, 0 end)
    s = from
  end
  give_back(ctx, pt, l, s, known, how, delay)
  if pt.lane == l.token then
    pt.lane = 0
  end
  drop_lease(ctx, l.token)
  local m = load_member(ctx, l.member)
  if m then
    if drop_token(m, l.token) and l.kind == 'ahead' then
      m.reservations = m.reservations - 1
    end
    touch_member(ctx, m)
  end
end

--- Ends the lease with this token, unless it has ended already.
local function end_lease_of(ctx, pt, token, how)
  local l = load_lease(ctx, token)
  if l then
    end_lease(ctx, pt, l, how)
  end
end

--- Ends the leases of members that are gone on this partition.
local function adopt_orphans(ctx, pt)
  if #ctx.orphans == 0 then
    return
  end
  local rest = {}
  for _, orphan in ipairs(ctx.orphans) do
    if orphan[Orphan.partition] == pt.p then
      end_lease_of(ctx, pt, orphan[Orphan.token], orphan[Orphan.how])
      ctx.lists_changed = true
    else
      rest[#rest + 1] = orphan
    end
  end
  ctx.orphans = rest
end

--- the lease that holds an undecided offset; looks at every lease, so only for rare calls
local function find_lease(ctx, p)
  local found = {}
  for _, l in ipairs(all_leases(ctx)) do
    if l.p == p and not in_runs(l) then
      found[#found + 1] = l
    end
  end
  return function(o)
    for _, l in ipairs(found) do
      if l.s <= o and o < l.e then
        return l
      end
    end
    return nil
  end
end

--- Keeps the bitmap short: what an old lease holds back is set aside under its token, so base can move on.
local function bound_bitmap(ctx, pt)
  if math.min(pt.next, pt.readable_end) - pt.base <= CONVERT_BITS then -- unwritten offsets are no exceptions
    return
  end
  local lease_of = find_lease(ctx, pt.p)
  local to = pt.base + CONVERT_BITS / 2
  local from = next_undecided(pt, pt.base, to)
  for _ = 1, CONVERT_RUNS do
    if not from then
      return
    end
    local stop = next_decided(pt, from, to)
    local l = lease_of(from)
    if not l then
      run_insert(pt, from, stop, returned_marks(ctx, 0, 1), 0, 0)
    else
      stop = math.min(stop, l.e)
      run_insert(pt, from, stop, 0, 0, l.token)
    end
    decide_range(pt, from, stop)
    from = next_undecided(pt, stop, to)
  end
end

--- Grants [s, e) to a member and returns the lease.
local function grant(ctx, pt, m, s, e, marks, kind)
  ctx.token = ctx.token + 1
  local l = {
    token = ctx.token, p = pt.p, s = s, e = e, member = m.id, marks = marks, kind = kind, records = e - s,
    seen = pt.seen, isolated = m.kind == '' and is_last_attempt(ctx, marks) and 1 or 0, due = 0,
  }
  save_lease(ctx, l)
  m.tokens[#m.tokens + 1] = l.token
  touch_member(ctx, m)
  want_wake(ctx, m.id)
  return l
end

--- Leases of suspects that their keeper may not dispatch yet: another one comes before (key-ordered). Their due time is DUE.
--- A member with MOST leases beside its lanes gets one of them on each lane.
local unarmed = { DUE = 2 ^ 52, MOST = 100 }

--- Grants a stretch of exceptions [s, e) with these marks and returns the lease. due: of a key-ordered subscription, when all
--- of them are due (0: now); they keep their due times. Else those are taken that are due now. later: nothing of them is
--- dispatched before `unarmed.arm_next`.
local function grant_runs(ctx, pt, m, s, e, marks, due, later)
  local l = grant(ctx, pt, m, s, e, marks, 'runs')
  run_change(pt, s, e, 0, function(run_marks, run_due)
    if run_marks == marks and (run_due <= ctx.now and 0 or run_due) == (due or 0) then
      return run_marks, due and run_due or 0, l.token
    end
    return run_marks, run_due, 0
  end, math.max(due or 0, ctx.now))
  local _, records = stretch_of(pt, s, e, l.token)
  l.records, l.due = records, later and unarmed.DUE or due or 0
  save_lease(ctx, l)
  if m.kind == '' and is_suspect(marks) and not later then
    m.suspect = l.token
  end
  if l.isolated == 1 and not later then
    m.isolated = l.token
  end
  return l
end
