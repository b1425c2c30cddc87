--- One exchange of a member: verdicts, positions and credit in; leases, horizons and its role out.
-- KEYS     see include/context.lua; three keys for each partition in ARGV[1][11], in that order, at most 16
-- ARGV[1]  6 exchange number (rises by 1; a repeat is answered again but not applied again)
--          7 free credit, records     8 highest token the member has seen     9 1: ask for presence of the others
--         10 span of a lane: window + unconfirmed budget, records
--         11 touched partitions, each { partition, avail (-1: nothing new), position of the lane (-1: none),
--              settled, returned, done, drained, expired, ahead, epoch, log end }
--              settled:  { token, { start, end, start, end, ... }, blob start, blob }  blob '' if there is none
--              returned: { token, start, end, how (0-2 of redelivery.lua), delay ms (-1: as the policy says) }
--              done:     tokens whose offsets all have their verdict
--              drained:  1: this lane of keys is given up, or this lane that has a turn of its own is offered: nothing
--                        of it is in the application's hands, nor will be until the reply is there
--              expired:  unsettled offsets of this report's that Kafka does not keep any more; they are counted
--              ahead:    how many offsets that are not written yet the member can be promised here (shared)
--              epoch:    leader epoch of what was read before avail (-1: not known, or nothing new)
--              log end:  where the log ended when Kafka was asked because the last reply said that it is wanted (-1:
--                        was not); older clients leave it out
--         12 1: the lanes are offered: nothing of them is in the application's hands, nor will be until the reply
--         13 number of the attachment (attach-6)
-- Reply    head, 5 highest token up to which all were told, 6 ask for presence again in ms (-1: all are heard),
--          7 { rank, members, id of the next member },
--          8 leases { token, partition, start, horizon, marks, kind, seen, stretch, 1: it is alone, ms until it is due }
--            with tokens above ARGV[1][8]
--            (stretch: start, end, start, end, ... of a lease of kind 'runs' or 'ahead', else empty),
--          9 horizons { token, horizon } of lanes, 10 refused tokens (fenced; nothing was changed for them),
--         11 partitions { partition, base, next, avail, floor, ms until the next exception is due (-1: none),
--            0: another member keeps this lane, 1: this one does, 2: it does and is to drain it: another one is to
--            keep it, or nobody while it is paused, first offset at or beyond avail that is nobody's,
--            leader epoch of what lies before avail (-1: not known), 1: the log's end is wanted, asked for from now on:
--            who held what before the state was lost may have been handed all before it, and nothing is granted until then },
--         12 partitions to watch,
--         13 partitions to touch next: leases of members who are gone, or of this one, are still to be seen there,
--         14 ms until leases are granted again,
--         15 lanes: 0 stands by, 1 holds them, 2 holds them and is asked to offer them; shared: 2: it is to give back
--            what was promised to it
--         16 tokens held, if the lanes were offered or one was given up (else empty)
--         17 1: the subscription is paused: nothing is to be handed out
--         18 ms until a session may have ended: whoever looks then ends it (-1: there is no other member)
--         19 1: nothing is granted until somebody has looked up in Kafka what was committed (rebuild-6)
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

local MAX_PARTS = 16

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
  if #parts > MAX_PARTS then
    return nil
  end
  local leases, refused, named, held, misplaced = {}, {}, {}, {}, false
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
    if named[part[1]] then
      return nil
    end
    named[part[1]] = true
    for _, v in ipairs(part[4]) do
      local l = mine(v[1], part[1])
      if l then
        if #v[2] % 2 ~= 0 then
          return nil
        end
        for i = 1, #v[2], 2 do
          if not inside(l, v[2][i], v[2][i + 1]) then
            return nil
          end
        end
        if #v[4] > 0 and not blob_inside(l, v[3], v[4]) then
          return nil
        end
      end
    end
    for _, v in ipairs(part[5]) do
      local l = mine(v[1], part[1])
      if l and not inside(l, v[2], v[3]) then
        return nil
      end
    end
    for _, token in ipairs(part[6]) do
      mine(token, part[1])
    end
  end
  if misplaced then
    return nil
  end
  return leases, refused
end

local function apply(ctx, pt, part, leases)
  local before = pt.avail
  pt.avail = math.max(pt.avail, part[2])
  pt.epoch = math.max(pt.epoch, part[10] or -1) -- older clients do not say it
  if pt.recovered < ctx.recovered and ctx.now >= ctx.grace then
    local log_end = part[11] or part[2]
    pt.seen = math.max(pt.seen, pt.avail, log_end)
    pt.recovered = log_end >= 0 and ctx.recovered or pt.recovered
  end
  pt.expired = pt.expired + part[8]
  for _, v in ipairs(part[4]) do
    local l = leases[v[1]]
    if l then
      for i = 1, #v[2], 2 do
        settle_range(pt, l, v[2][i], v[2][i + 1])
        pt.avail = math.max(pt.avail, v[2][i + 1])
      end
      if #v[4] > 0 then
        settle_blob(pt, l, v[3], v[4])
        pt.avail = math.max(pt.avail, blob_end(v[3], v[4]))
      end
    end
  end
  for _, v in ipairs(part[5]) do
    local l = leases[v[1]]
    if l then
      give_back(ctx, pt, l, v[2], v[3], v[4], v[5])
      if v[4] > 0 then
        pt.avail = math.max(pt.avail, v[3])
      end
    end
  end
  for _, token in ipairs(part[6]) do
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

local function new_leases(ctx, me, have, touched)
  local out, untold, known = {}, {}, ctx.token
  for _, token in ipairs(me.tokens) do
    if token > have then
      local l = load_lease(ctx, token)
      if l then
        local pt = touched[l.p]
        if not in_runs(l) then
          out[#out + 1] = { l.token, l.p, l.s, l.e, l.marks, l.kind, l.seen, {}, 0, 0 }
        elseif pt then -- a lease of exceptions is told when its partition is touched: what it holds stands there
          out[#out + 1] = { l.token, l.p, l.s, l.e, l.marks, l.kind, l.seen, (stretch_of(pt, l.s, l.e, token)), l.alone,
            math.max(l.due - ctx.now, 0) }
        else
          untold[#untold + 1] = l.p
          known = math.min(known, token - 1) -- each answer gets further: its partition is touched next
        end
      end
    end
  end
  return out, untold, known
end

--- Does the member hold the lanes, and is somebody better waiting for them?
local function standing(ctx, me, lane)
  if me.alone < 0 and me.ahead > 0 then
    return 2
  end
  if not lane or ctx.holder ~= me.id then
    return 0
  end
  if ctx.row.paused == '1' then -- what nobody has in hands goes back
    return #me.tokens > 0 and 2 or 1
  end
  return ctx.row.type == 'priority' and lane_successor(ctx, me) and 2 or 1
end

--- the same of one lane that has a keeper
local function keeping(ctx, me, pt)
  if pt.keeper ~= me.id then
    return 0
  end
  if is_keyed(ctx) then
    return (ctx.row.paused == '1' or keeper_to_be(ctx, pt) ~= me) and 2 or 1
  end
  for _, token in ipairs(ctx.row.paused == '1' and me.tokens or {}) do
    local l = load_lease(ctx, token)
    if l and l.p == pt.p then -- what nobody has in hands goes back
      return 2
    end
  end
  return 1
end

--- The member is back after a restart, and has claimed what it wanted (reclaim-6+3): when all who were attached
--- are, nobody need wait for them any more.
local function note_back(ctx, me)
  local rest = {}
  for _, id in ipairs(ctx.awaited) do
    if id ~= me.id then
      rest[#rest + 1] = id
    end
  end
  ctx.awaited, ctx.awaited_changed = rest, true
  if #rest == 0 then
    ctx.grace = 0
    wake_all(ctx)
  end
end

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code ~= 'OK' then
  return head(ctx, code)
end
local me = load_member(ctx, request[5])
if not me or me.n ~= request[13] then -- also an exchange of an earlier attachment that was long under way
  return head(ctx, 'FENCED')
end
if request[6] < me.exchange then
  return head(ctx, 'STALE')
end
local parts = request[11]
ctx.finds_ends = parts[1] ~= nil and parts[1][11] ~= nil
local touched = load_partitions(ctx, parts)
if not touched then
  return head(ctx, 'MISSING')
end

local lane, kept = is_lane(ctx) and me.kind == '', is_keyed(ctx) or has_own_turns(ctx)
local offered, given_up = lane and request[12] == 1, false
for _, part in ipairs(parts) do
  given_up = given_up or kept and part[7] == 1
end
local again = -1
if request[6] > me.exchange then
  local leases, refused = check(ctx, me, parts)
  if not leases then
    return head(ctx, 'INVALID')
  end
  local was_full = me.credit == 0
  me.exchange, me.refused = request[6], refused
  me.expiry = ctx.now + me.ttl
  me.credit = math.max(request[7] - unseen(ctx, me, request[8]), 0)
  me.silent = 0
  touch_member(ctx, me)
  if #ctx.awaited > 0 then
    note_back(ctx, me)
  end
  if not lane and not kept then
    set_hungry(me)
  end
  if ctx.next_expiry <= ctx.now or request[9] == 1 then
    again = reap(ctx, request[9] == 1)
  end
  for i, pt in ipairs(touched) do
    apply(ctx, pt, parts[i], leases)
    if #parts[i][4] > 0 or #parts[i][5] > 0 then
      ctx.verdict = ctx.now
    end
    adopt_orphans(ctx, pt)
    bound_bitmap(ctx, pt)
    if parts[i][7] == 1 and is_keyed(ctx) then
      give_up_lane(ctx, pt, me)
    elseif parts[i][7] == 1 and kept and ctx.now >= ctx.grace then
      pass_own_turn(ctx, pt, me, parts[i][3], request[10] == 0)
    end
  end
  if offered and ctx.now >= ctx.grace then
    local positions = {}
    for i, part in ipairs(parts) do
      positions[i] = part[3]
    end
    pass_turn(ctx, me, touched, positions)
  end
  local freed = false
  for i, pt in ipairs(touched) do
    serve(ctx, pt, parts[i][3], request[10], offered or parts[i][7] == 1)
    if me.alone == -1 - pt.p and #me.tokens == 0 then -- what it was kept free for is gone
      me.alone, freed = 0, true
    end
  end
  for i, pt in ipairs(touched) do
    if freed then -- what it did not get until now
      serve(ctx, pt, parts[i][3], request[10], offered or parts[i][7] == 1)
    end
    if not lane and not kept then
      settle_watch(ctx, pt.p, me)
      if may_grant(ctx, pt) then
        promise(ctx, pt, me, parts[i][9])
      end
    end
    save_partition(pt)
  end
  if was_full and me.credit > 0 and has_own_turns(ctx) then
    ask_the_full(ctx)
  end
  if lane then
    lane_holder(ctx) -- also when no partition was touched: who is chosen must be woken
  elseif not kept then
    adopt_unwatched(ctx, me)
  end
  save_members(ctx)
  send_wakes(ctx)
  close(ctx)
end

local by_partition, horizons, states = {}, {}, {}
for i, pt in ipairs(touched) do
  by_partition[pt.p] = pt
  if pt.lane ~= 0 then
    local l = load_lease(ctx, pt.lane)
    if l and l.member == me.id then
      horizons[#horizons + 1] = { l.token, l.e }
    end
  end
  local due = pt.xd < 0 and -1 or math.max(pt.xd - ctx.now, 0)
  states[i] = { pt.p, pt.base, pt.next, pt.avail, floor_of(pt), due, kept and keeping(ctx, me, pt) or 0,
    first_free(pt), pt.epoch, ctx.now >= ctx.grace and is_unsure(ctx, pt) and 1 or 0 }
end
local rank = rank_of(ctx, me.id) or 0
local told, untold, known = new_leases(ctx, me, request[8], by_partition)
local left_over, listed = {}, {}
local function leave_over(p)
  if not listed[p] then
    listed[p] = true
    left_over[#left_over + 1] = p
  end
end
for _, orphan in ipairs(ctx.orphans) do
  leave_over(orphan[3])
end
for _, p in ipairs(untold) do
  leave_over(p)
end
if me.alone < 0 and #me.tokens == 0 then
  leave_over(-1 - me.alone)
end
local reply = head(ctx, 'OK')
reply[5] = known -- what was not told is asked for again
reply[6] = again
reply[7] = { rank, #ctx.ranks, ctx.ranks[(rank + 1) % #ctx.ranks + 1] or '' }
reply[8] = told
reply[9] = horizons
reply[10] = me.refused
reply[11] = states
reply[12] = me.watches
reply[13] = left_over
reply[14] = math.max(ctx.grace - ctx.now, 0)
reply[15] = kept and 1 or standing(ctx, me, lane)
reply[16] = (offered or given_up) and me.tokens or {}
reply[17] = ctx.row.paused == '1' and 1 or 0
reply[18] = #ctx.ranks > 1 and math.max(ctx.next_expiry - ctx.now, 0) or -1
reply[19] = ctx.row.doubt == '1' and #ctx.orphans == 0 and 1 or 0 -- first what the orphans tried is counted
return reply
