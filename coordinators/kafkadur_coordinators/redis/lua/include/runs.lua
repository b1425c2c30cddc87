--- Exceptions of one partition: offsets that are decided but not settled.
-- They are kept as runs, sorted by offset, 24 bytes per run:
--   start (6 bytes), length (4), marks (2), due (6, ms), token (6), all big-endian.
-- marks: attempts, whether it may have been delivered before, and whether it is a crash suspect (redelivery.lua).
-- token = 0: the run has no lease; it is ready once `due` has passed, as far as it lies below the readable end.
-- Runs never overlap. Memory follows the number of holes, not the distance to the oldest one.
-- The runs lie in blocks, each a field of its own, so that a script reads and writes only those that it needs. The index
-- (pt.index) has an entry of 16 bytes for each block: first (6 bytes), the number of its runs (4) and due (6). All runs of a
-- block start at or after its first offset and before that of the next block. `due` is a lower bound of the earliest due
-- time of those without a lease (NEVER: there is none); pt.xd is one for the whole partition (-1: there is none).
-- pt.blocks: the blocks read so far, by their first offset.
local NEVER = 2 ^ 48 - 1
local blocks = { MOST = 128, ENTRIES = string.rep('I6I4I6', 32) } -- runs in a block at most; entries that are read at once

function blocks.count(pt)
  return #pt.index / ENTRY_SIZE
end

--- first offset, number of runs, due
function blocks.entry(pt, b)
  return struct.unpack(ENTRY, pt.index, (b - 1) * ENTRY_SIZE + 1)
end

--- Puts these entries in place of entries b to c - 1.
function blocks.splice(pt, b, c, entries)
  pt.index = string.sub(pt.index, 1, (b - 1) * ENTRY_SIZE) .. entries .. string.sub(pt.index, (c - 1) * ENTRY_SIZE + 1)
end

function blocks.set_due(pt, b, due)
  local first, count, known = blocks.entry(pt, b)
  if due ~= known then
    blocks.splice(pt, b, b + 1, struct.pack(ENTRY, first, count, due))
  end
end

--- The runs of block b as text, and their number.
function blocks.text(pt, b)
  local first, count = blocks.entry(pt, b)
  local found = pt.blocks[first]
  if not found then
    found = store.block(pt, first)
    if not found or #found ~= count * RUN_SIZE or struct.unpack('>I6', found) < first then
      store.damaged()
    end
    pt.blocks[first] = found
  end
  return found, count
end

function blocks.forget(pt, first)
  pt.blocks[first], pt.changed_blocks[first] = nil, false
end

--- Entries and blocks for these runs, which begin at or after `first`.
function blocks.cut(pt, first, runs, due)
  local most, entries = (pt.block_runs or blocks.MOST) * RUN_SIZE, {}
  local each = most
  if #runs > most then -- of equal length, so that there is room in all of them
    each = math.ceil(#runs / RUN_SIZE / math.ceil(#runs / most)) * RUN_SIZE
  end
  for at = 1, #runs, each do
    local block = string.sub(runs, at, at + each - 1)
    local start = at == 1 and first or struct.unpack('>I6', block)
    pt.blocks[start], pt.changed_blocks[start] = block, true
    entries[#entries + 1] = struct.pack(ENTRY, start, #block / RUN_SIZE, due)
    if #runs <= most then
      break
    end
  end
  return table.concat(entries)
end

--- Puts these runs in place of block b; due: of those among them that were added. A short block is joined to the next one.
function blocks.replace(pt, b, runs, due)
  local first, _, known = blocks.entry(pt, b)
  if runs == '' then
    blocks.forget(pt, first)
    blocks.splice(pt, b, b + 1, '')
    return
  end
  due = math.min(known, due)
  local stop, most = b + 1, pt.block_runs or blocks.MOST
  if #runs < most / 4 * RUN_SIZE and b < blocks.count(pt) then
    local next_first, count, next_due = blocks.entry(pt, b + 1)
    if #runs + count * RUN_SIZE <= most / 2 * RUN_SIZE then
      runs, due, stop = runs .. blocks.text(pt, b + 1), math.min(due, next_due), b + 2
      blocks.forget(pt, next_first)
    end
  end
  local start = struct.unpack('>I6', runs)
  if start < first then
    blocks.forget(pt, first)
    first = start
  end
  blocks.splice(pt, b, stop, blocks.cut(pt, first, runs, due))
end

--- The first block from b on with a run that may be due; nil if there is none.
function blocks.next_due(pt, b, now)
  local count = blocks.count(pt)
  while b <= count do
    local n = math.min(count - b + 1, 32)
    local found = { struct.unpack('>' .. string.sub(blocks.ENTRIES, 1, n * 6), pt.index, (b - 1) * ENTRY_SIZE + 1) }
    for k = 1, n do
      if found[k * 3] <= now then
        return b + k - 1
      end
    end
    b = b + n
  end
  return nil
end

--- The earliest due time of blocks that begin before `stop`, except block `but`; NEVER if there is none.
function blocks.earliest(pt, stop, but)
  local count, least, b = blocks.count(pt), NEVER, 1
  while b <= count do
    local n = math.min(count - b + 1, 32)
    local found = { struct.unpack('>' .. string.sub(blocks.ENTRIES, 1, n * 6), pt.index, (b - 1) * ENTRY_SIZE + 1) }
    for k = 1, n do
      if found[k * 3 - 2] < stop and found[k * 3] < least and b + k - 1 ~= but then
        least = found[k * 3]
      end
    end
    b = b + n
  end
  return least
end

--- The block that begins last at or before offset o; 0 if there is none.
function blocks.at(pt, o)
  local lo, hi = 0, blocks.count(pt)
  while lo < hi do
    local mid = math.ceil((lo + hi) / 2)
    if blocks.entry(pt, mid) <= o then
      lo = mid
    else
      hi = mid - 1
    end
  end
  return lo
end

--- All runs, as one text.
local function runs_text(pt)
  local all = {}
  for b = 1, blocks.count(pt) do
    all[b] = blocks.text(pt, b)
  end
  return table.concat(all)
end

--- start, end (exclusive), marks, due, token of the i-th run of a text
local function run_in(block, i)
  local s, len, marks, due, token = struct.unpack(RUN, block, (i - 1) * RUN_SIZE + 1)
  return s, s + len, marks, due, token
end

--- the first run of the partition; nil if there is none
local function first_run(pt)
  if pt.index == '' then
    return nil
  end
  return run_in(blocks.text(pt, 1), 1)
end

--- the last run of the partition; nil if there is none
local function last_run(pt)
  if pt.index == '' then
    return nil
  end
  return run_in(blocks.text(pt, blocks.count(pt)))
end

local function run_text(s, e, marks, due, token)
  if e <= s then
    return ''
  end
  return struct.pack(RUN, s, e - s, marks, due, token)
end

--- the first i of a text whose run ends after offset o; the number of its runs + 1 if there is none
function blocks.search(block, count, o)
  local lo, hi = 1, count + 1
  while lo < hi do
    local mid = math.floor((lo + hi) / 2)
    local _, e = run_in(block, mid)
    if e > o then
      hi = mid
    else
      lo = mid + 1
    end
  end
  return lo
end

--- Calls look(start, end, marks, due, token) with each run that ends after offset o, in order, until it returns something,
--- and returns that. Blocks in which no run has no lease are passed over where only such are looked for (`free`).
local function look_at_runs(pt, o, look, free)
  local b = math.max(blocks.at(pt, o), 1)
  for at = b, blocks.count(pt) do
    local _, count, due = blocks.entry(pt, at)
    if not free or due < NEVER then
      local block = blocks.text(pt, at)
      for i = at == b and blocks.search(block, count, o) or 1, count do
        local found = look(run_in(block, i))
        if found then
          return found
        end
      end
    end
  end
  return nil
end

--- start of the first run without a lease that ends after offset o; nil if there is none
local function next_without_lease(pt, o)
  return look_at_runs(pt, o, function(s, _, _, _, token)
    return token == 0 and s
  end, true)
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
  local until_ = token == 0 and due or NEVER
  if token == 0 then
    note_due(pt, due)
  end
  if pt.index == '' then
    pt.index = blocks.cut(pt, s, run_text(s, e, marks, due, token), until_)
    return
  end
  local b = math.max(blocks.at(pt, s), 1)
  local block, count = blocks.text(pt, b)
  local i = blocks.search(block, count, s)
  local kept, from = i - 1, s
  if i > 1 then
    local ps, pe, pm, pd, pk = run_in(block, i - 1)
    if pe == s and pm == marks and pd == due and pk == token then
      kept, from = i - 2, ps
    end
  end
  blocks.replace(pt, b, string.sub(block, 1, kept * RUN_SIZE) .. run_text(from, e, marks, due, token)
    .. string.sub(block, (i - 1) * RUN_SIZE + 1), until_)
end

--- What run_change makes of one block, from its i-th run on: the new runs, how many offsets were changed, and the earliest
--- due time of changed runs without a lease.
function blocks.changed(block, i, count, s, e, token, change)
  local from, out, changed, least = i, {}, 0, NEVER
  while i <= count do
    local rs, re, marks, due, held = run_in(block, i)
    if rs >= e then
      break
    end
    if held == token then
      local first, stop = math.max(rs, s), math.min(re, e)
      out[#out + 1] = run_text(rs, first, marks, due, held)
      local m2, d2, t2 = change(marks, due, first, stop)
      if type(m2) == 'string' then
        out[#out + 1] = m2
      elseif m2 then
        out[#out + 1] = run_text(first, stop, m2, d2, t2)
        least = t2 == 0 and math.min(least, d2) or least
      end
      out[#out + 1] = run_text(stop, re, marks, due, held)
      changed = changed + (stop - first)
    else
      out[#out + 1] = string.sub(block, (i - 1) * RUN_SIZE + 1, i * RUN_SIZE)
    end
    i = i + 1
  end
  if changed == 0 then
    return nil, 0
  end
  local new = string.sub(block, 1, (from - 1) * RUN_SIZE) .. table.concat(out) .. string.sub(block, (i - 1) * RUN_SIZE + 1)
  return new, changed, least
end

--- Changes what [s, e) holds of `token`: change(marks, due, start, end) gives the new marks, due and token of this part of a
--- run, or nil to settle it, or the runs that stay of it as text. Returns how many offsets were changed. by: if not nil, runs
--- without a lease that are due later need not be looked at.
local function run_change(pt, s, e, token, change, by)
  if pt.index == '' or e <= s then
    return 0
  end
  local b, held, all, new = math.max(blocks.at(pt, s), 1), struct.pack('>I6', token), 0, {}
  for at = b, blocks.count(pt) do
    local first, count, due = blocks.entry(pt, at)
    if first >= e then
      break
    end
    if token ~= 0 or due <= (by or NEVER - 1) then
      local block = blocks.text(pt, at)
      if token == 0 or string.find(block, held, 1, true) then
        local i = at == b and blocks.search(block, count, s) or 1
        local runs, changed, least = blocks.changed(block, i, count, s, e, token, change)
        if runs then
          new[#new + 1] = { at, runs, least }
          all = all + changed
        end
      end
    end
  end
  for i = #new, 1, -1 do -- from the last on: the numbers of those before stay
    blocks.replace(pt, unpack(new[i]))
    if new[i][3] < NEVER then
      note_due(pt, new[i][3])
    end
  end
  return all
end

--- Ready runs from the lowest offset on that one lease can take: first offset, end, marks; nil if there is none. In
-- strict order none of those behind one that is not due yet.
-- They lie below the readable end and near each other, and have equal marks. They are at most STRETCH_RUNS, from at most
-- STRETCH_BLOCKS, with `limit` records together at most, and no more than most_together allows; a member that takes
-- stretches at once (`all`) is not bound by that.
-- Looks at runs only when something may be due, and then corrects the due times of blocks and pt.xd.
local STRETCH_RUNS = 64
local STRETCH_GAP = 1000
local STRETCH_BLOCKS = 4

local function ready_stretch(ctx, pt, limit, all)
  local now, strict = ctx.now, ctx.policy[Policy.strict] == 1
  if pt.xd < 0 or pt.xd > now then
    return nil
  end
  local first, stop, marks, begun, runs = nil, nil, nil, nil, 0
  local b, half, least_of_half = blocks.next_due(pt, 1, strict and NEVER - 1 or now), nil, NEVER
  while b do
    local from, count = blocks.entry(pt, b)
    if from >= pt.readable_end or first and (from - stop > STRETCH_GAP or b - begun >= STRETCH_BLOCKS) then
      break
    end
    local block, least, whole, some = blocks.text(pt, b), NEVER, true, false
    for i = 1, count do
      local s, e, m, due, token = run_in(block, i)
      if s >= pt.readable_end then -- was reserved and given back (reservations.lua), and is not written yet
        whole = false
        break
      end
      e = math.min(e, pt.readable_end)
      if token == 0 and due <= now then
        if first and (m ~= marks or s - stop > STRETCH_GAP or runs == STRETCH_RUNS) then
          return first, stop, marks
        end
        if not first and not all then
          limit = math.min(limit, most_together(ctx, m))
        end
        first, marks, runs, begun, some = first or s, m, runs + 1, begun or b, true
        stop = math.min(e, s + limit)
        limit = limit - (stop - s)
        if limit == 0 then
          return first, stop, marks
        end
      elseif token == 0 then
        least = math.min(least, due)
        if strict then
          pt.xd = first and pt.xd or least
          return first, stop, marks
        end
      end
    end
    if not whole then
      half, least_of_half = b, least
      break
    elseif not some then
      blocks.set_due(pt, b, least)
    end
    b = blocks.next_due(pt, b + 1, strict and NEVER - 1 or now)
  end
  if not first then
    local least = math.min(least_of_half, blocks.earliest(pt, pt.readable_end, half))
    pt.xd = least < NEVER and least or -1
  end
  return first, stop, marks
end

--- Forgets the runs at or beyond an offset.
local function cut_runs(pt, from)
  for b = blocks.count(pt), math.max(blocks.at(pt, from), 1), -1 do
    local block, count = blocks.text(pt, b)
    local i = blocks.search(block, count, from)
    if i <= count then
      local s, e, marks, due, token = run_in(block, i)
      blocks.replace(pt, b, string.sub(block, 1, (i - 1) * RUN_SIZE) .. run_text(s, math.min(e, from), marks, due, token), NEVER)
    end
  end
end

--- Exceptions without a lease between the readable end before and now are ready.
local function note_reached(pt, before_it)
  local _, e = last_run(pt)
  if pt.readable_end > before_it and e and e > before_it then
    note_due(pt, 0)
  end
end

--- start, end, start, end, ... of what [s, e) holds of a token, and how many offsets that is
local function stretch_of(pt, s, e, token)
  local pairs_, records, held = {}, 0, struct.pack('>I6', token)
  local b = math.max(blocks.at(pt, s), 1)
  for at = b, blocks.count(pt) do
    local first, count = blocks.entry(pt, at)
    if first >= e then
      break
    end
    local block = blocks.text(pt, at)
    if string.find(block, held, 1, true) then
      for i = at == b and blocks.search(block, count, s) or 1, count do
        local rs, re, _, _, other = run_in(block, i)
        if rs >= e then
          break
        end
        if other == token then
          pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = rs, re
          records = records + (re - rs)
        end
      end
    end
  end
  return pairs_, records
end
