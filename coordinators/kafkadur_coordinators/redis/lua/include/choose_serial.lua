--- The next holder of a lane of type serial: members take turns, in the order of attaching. A turn ends when the
--- holder has nothing in flight and there is something for the next one; until then it keeps
--- the lane and watches.
local function choose_serial(ctx)
  local m = ctx.holder ~= '' and load_member(ctx, ctx.holder)
  if m then
    return m
  end
  for _, id in ipairs(ctx.ranks) do -- the first pick is free; after a death it goes to a member that can take it
    if id == ctx.caller or is_heard(ctx, id) then
      return load_member(ctx, id)
    end
  end
  return nil
end

--- the member whose turn is next; nil if no other member can take it
local function next_in_turn(ctx, holder)
  local rank = rank_of(ctx, holder.id)
  if not rank then
    return nil
  end
  for i = 1, #ctx.ranks - 1 do
    local m = load_member(ctx, ctx.ranks[(rank + i) % #ctx.ranks + 1])
    if m and m.credit > 0 and (m.id == ctx.caller or is_heard(ctx, m.id)) then
      return m
    end
  end
  return nil
end
