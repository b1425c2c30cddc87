--- Grants leases: one include for each subscription type chooses the member, all else is the same for all types.
local MAX_GRANTS = 16 -- in one script call and partition
-- Offsets that one member of a shared subscription may have reserved on one partition: where members share the partition,
-- and where each partition has one member.
local MOST_AHEAD, MOST_AHEAD_ALONE = 4, 32

--- @include "choose_exclusive"
--- @include "choose_priority"
--- @include "choose_serial"
--- @include "choose_shared"
--- @include "reservations"
--- @include "lane"
--- @include "keyed"
--- @include "own_turns"

--- May anything of this partition be granted now, to any member?
local function may_grant(ctx, pt)
  return ctx.now >= ctx.grace and ctx.paused ~= 1 and ctx.doubt ~= 1 and not is_log_end_unknown(ctx, pt)
end

local function serve(ctx, pt, position, span, handed_over)
  if pt.vacated then
    pt.vacated = false
    forget_vacated(ctx, pt)
  end
  if not may_grant(ctx, pt) then
    return
  end
  if is_keyed(ctx) then
    serve_keyed(ctx, pt, position, span)
    return
  end
  if has_own_turns(ctx) then
    serve_own_turn(ctx, pt, position, span, handed_over)
    return
  end
  local m = is_lane(ctx) and lane_holder(ctx)
  if not is_lane(ctx) or (m and m.kind == 'whole') then -- a holder of the whole reads ranges, whatever the type
    serve_shared(ctx, pt)
  elseif m and m.id == ctx.caller then
    serve_lane(ctx, pt, m, position, span, handed_over)
  elseif m and m == ctx.passed_to then
    serve_lane(ctx, pt, m, -1, m.credit, false)
  end
end

--- the items of a list, without this one
local function without(list, item)
  local rest = {}
  for _, other in ipairs(list) do
    if other ~= item then
      rest[#rest + 1] = other
    end
  end
  return rest
end

--- Partition p gets a watcher with free credit, if there is one: a member that reports how far p is readable.
local function hand_on_watch(ctx, p, me)
  local now = store.watcher(ctx, p)
  if now and now ~= me.id and load_member(ctx, now) then
    return
  end
  for _, id in ipairs(first_hungry(ctx)) do
    local m = id ~= me.id and load_member(ctx, id)
    if m and m.kind == '' and m.credit > 0 and is_heard(ctx, id) then
      store.set_watcher(ctx, p, id)
      m.watches[#m.watches + 1] = p
      touch_member(ctx, m)
      want_wake(ctx, id)
      return
    end
  end
  ctx.unwatched = without(ctx.unwatched, p)
  ctx.unwatched[#ctx.unwatched + 1] = p
  ctx.lists_changed = true
end

--- Does the end reporter of p prefer p, and does it have credit?
local function well_watched(ctx, p, holder)
  return holder and holder.credit > 0 and prefers(ctx, holder, p)
end

--- Chooses the end reporter of a touched partition after this exchange. A member that prefers the partition and has credit
--- replaces one that does not prefer it or has no credit, and passes the role on in the exchange that uses up its credit.
--- Members of the kinds whole and claims never report.
local function settle_watch(ctx, p, me)
  local id = store.watcher(ctx, p)
  local mine = id == me.id
  local leaves = mine and me.reads_on and not prefers(ctx, me, p)
  if me.kind == '' and me.credit > 0 and not leaves then
    local holder = id and load_member(ctx, id)
    if not mine and prefers(ctx, me, p) and not well_watched(ctx, p, holder) then
      if holder then
        holder.watches = without(holder.watches, p)
        touch_member(ctx, holder)
      end
      store.set_watcher(ctx, p, me.id)
      me.watches[#me.watches + 1] = p
      ctx.unwatched = without(ctx.unwatched, p)
      ctx.lists_changed = true
    end
  elseif mine or not id then -- no member with room has touched it yet
    store.set_watcher(ctx, p, nil)
    me.watches = without(me.watches, p)
    hand_on_watch(ctx, p, me)
  end
end

--- A member with room that takes record by record takes on partitions without an end reporter; one that reads on in its
--- own partitions takes on no others.
local function adopt_unwatched(ctx, me)
  if me.kind ~= '' or me.credit <= 0 then
    return
  end
  local left = {}
  for _, p in ipairs(ctx.unwatched) do
    if me.reads_on and not prefers(ctx, me, p) then
      left[#left + 1] = p
    else
      store.set_watcher(ctx, p, me.id)
      me.watches[#me.watches + 1] = p
    end
  end
  if #left < #ctx.unwatched then
    ctx.unwatched = left
    ctx.lists_changed = true
  end
end
