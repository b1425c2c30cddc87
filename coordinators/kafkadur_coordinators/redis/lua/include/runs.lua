--- Exceptions of one partition: offsets that are decided as a place but not settled.
-- They are kept as runs in one string, sorted by offset, 24 bytes a run:
--   start (6 bytes), length (4), marks (2), due (6, ms), token (6), all big-endian.
-- marks: attempts, and whether it may have been delivered before (redelivery.lua).
-- token = 0: the run has no lease; it is ready once `due` has passed, as far as it lies below the readable end.
-- Runs never overlap. Memory follows the number of holes, not the distance to the oldest one.
-- `pt` is the table that load_partition made; pt.xd is a lower bound of the earliest due time of
-- the runs without a lease (-1: there is none).
local RUN = '>I6I4I2I6I6'
local RUN_SIZE = 24

local function runs_text(pt)
  if not pt.runs then
    pt.runs = redis.call('GET', pt.runs_key) or ''
  end
  return pt.runs
end

local function run_count(pt)
  return #runs_text(pt) / RUN_SIZE
end

--- start, end (exclusive), marks, due, token of run i (from 1)
local function run_at(pt, i)
  local s, len, marks, due, token = struct.unpack(RUN, pt.runs, (i - 1) * RUN_SIZE + 1)
  return s, s + len, marks, due, token
end

local function run_text(s, e, marks, due, token)
  if e <= s then
    return ''
  end
  return struct.pack(RUN, s, e - s, marks, due, token)
end

--- the first i whose run ends after offset o; run_count + 1 if there is none
local function run_search(pt, o)
  local lo, hi = 1, run_count(pt) + 1
  while lo < hi do
    local mid = math.floor((lo + hi) / 2)
    local _, e = run_at(pt, mid)
    if e > o then
      hi = mid
    else
      lo = mid + 1
    end
  end
  return lo
end

--- start of the first run without a lease that ends after offset o; nil if there is none
local function next_without_lease(pt, o)
  for i = run_search(pt, o), run_count(pt) do
    local s, _, _, _, token = run_at(pt, i)
    if token == 0 then
      return s
    end
  end
  return nil
end

--- replaces runs i .. j-1 by packed ones
local function run_splice(pt, i, j, packed)
  local all = runs_text(pt)
  pt.runs = string.sub(all, 1, (i - 1) * RUN_SIZE) .. packed .. string.sub(all, (j - 1) * RUN_SIZE + 1)
  pt.runs_changed = true
end

local function note_due(pt, due)
  if pt.xd < 0 or due < pt.xd then
    pt.xd = due
  end
end

--- a new run; joined to its neighbour on the left when they differ in nothing but place
local function run_insert(pt, s, e, marks, due, token)
  if e <= s then
    return
  end
  local i = run_search(pt, s)
  if i > 1 then
    local ps, pe, pm, pd, pk = run_at(pt, i - 1)
    if pe == s and pm == marks and pd == due and pk == token then
      run_splice(pt, i - 1, i, run_text(ps, e, marks, due, token))
      if token == 0 then
        note_due(pt, due)
      end
      return
    end
  end
  run_splice(pt, i, i, run_text(s, e, marks, due, token))
  if token == 0 then
    note_due(pt, due)
  end
end

--- Changes what [s, e) holds of `token`: change(marks, due, token) gives the new marks, due and token,
--- or nil to settle it. Returns how many offsets were changed.
local function run_change(pt, s, e, token, change)
  local i = run_search(pt, s)
  local n = run_count(pt)
  local j, out, changed = i, {}, 0
  while j <= n do
    local rs, re, marks, due, held = run_at(pt, j)
    if rs >= e then
      break
    end
    if held == token then
      local from, to = math.max(rs, s), math.min(re, e)
      out[#out + 1] = run_text(rs, from, marks, due, held)
      local m2, d2, t2 = change(marks, due, held)
      if m2 then
        out[#out + 1] = run_text(from, to, m2, d2, t2)
        if t2 == 0 then
          note_due(pt, d2)
        end
      end
      out[#out + 1] = run_text(to, re, marks, due, held)
      changed = changed + (to - from)
    else
      out[#out + 1] = run_text(rs, re, marks, due, held)
    end
    j = j + 1
  end
  if changed > 0 then
    run_splice(pt, i, j, table.concat(out))
  end
  return changed
end

--- Ready runs from the lowest offset on that one lease can take: first offset, end, marks; nil if there is none. In
-- strict order none of those behind one that is not due yet.
-- They lie below the readable end and near each other, and have equal marks. They are at most STRETCH_RUNS, with `limit`
-- records together at most, and no more than most_together allows; a member that takes stretches at once (`all`) is
-- not bound by that.
-- Looks at every run only when something may be due, and then corrects pt.xd.
local STRETCH_RUNS = 64
local STRETCH_GAP = 1000

local function ready_stretch(ctx, pt, limit, all)
  local now = ctx.now
  if pt.xd < 0 or pt.xd > now then
    return nil
  end
  local least, first, stop, marks, count = -1, nil, nil, nil, 0
  for i = 1, run_count(pt) do
    local s, e, m, due, token = run_at(pt, i)
    if s >= pt.readable_end then -- was reserved and given back (reservations.lua), and is not written yet
      break
    end
    e = math.min(e, pt.readable_end)
    if token == 0 and due <= now then
      if first and (m ~= marks or s - stop > STRETCH_GAP or count == STRETCH_RUNS) then
        return first, stop, marks
      end
      if not first and not all then
        limit = math.min(limit, most_together(ctx, m))
      end
      first, marks, count = first or s, m, count + 1
      stop = math.min(e, s + limit)
      limit = limit - (stop - s)
      if limit == 0 then
        return first, stop, marks
      end
    elseif token == 0 then
      least = least < 0 and due or math.min(least, due)
      if ctx.policy[Policy.strict] == 1 then
        break
      end
    end
  end
  if not first then
    pt.xd = least
  end
  return first, stop, marks
end

--- Exceptions without a lease between the readable end before and now are ready.
local function note_reached(pt, before)
  local n = run_count(pt)
  if pt.readable_end > before and n > 0 and select(2, run_at(pt, n)) > before then
    note_due(pt, 0)
  end
end

--- start, end, start, end, ... of what [s, e) holds of a token, and how many offsets that is
local function stretch_of(pt, s, e, token)
  local pairs_, records = {}, 0
  for i = run_search(pt, s), run_count(pt) do
    local rs, re, _, _, held = run_at(pt, i)
    if rs >= e then
      break
    end
    if held == token then
      pairs_[#pairs_ + 1] = rs
      pairs_[#pairs_ + 1] = re
      records = records + (re - rs)
    end
  end
  return pairs_, records
end
