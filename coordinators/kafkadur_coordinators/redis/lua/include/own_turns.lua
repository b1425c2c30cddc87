--- Lanes of a serial subscription whose partitions have a turn of their own (lane.lua): each has a keeper, which has the
--- turn (pt.keeper). It is served as any other lane, and passes by itself.
--- The keeper of a lane; chosen when there is none: members are spread over partitions, in the order of attaching.
local function keeper_in_turn(ctx, pt)
  local m = pt.keeper ~= '' and load_member(ctx, pt.keeper)
  if m then
    return m
  end
  pt.keeper = ''
  for i = 0, #ctx.ranks - 1 do
    local id = ctx.ranks[(pt.p + i) % #ctx.ranks + 1]
    if id == ctx.caller or is_heard(ctx, id) then
      pt.keeper = id
      want_wake(ctx, id)
      return load_member(ctx, id)
    end
  end
  return nil
end

local function serve_own_turn(ctx, pt, position, span, handed_over)
  local m = keeper_in_turn(ctx, pt)
  if m and m.id == ctx.caller then
    serve_lane(ctx, pt, m, position, span, handed_over)
  end
end

--- The caller has credit again. Members without credit that keep more than one lane are woken, so that they offer some.
local function ask_the_full(ctx)
  for _, id in ipairs(ctx.ranks) do
    local m = load_member(ctx, id)
    if m and m.credit == 0 and #m.tokens > 1 then
      want_wake(ctx, id)
    end
  end
end

--- The keeper offers one lane, as pass_turn: it passes to the next member if there is something for it, or if the keeper is
--- about to leave. While the subscription is paused it ends.
local function pass_own_turn(ctx, pt, me, position, leaving)
  if pt.keeper ~= me.id then
    return
  end
  local paused = ctx.paused == 1
  local to = paused and me or lane_successor(ctx, me)
  if to and (paused or leaving or deliverable(ctx, pt, position)) then
    give_up_lane(ctx, pt, me)
    pt.keeper = to.id
    want_wake(ctx, to.id)
  end
end
