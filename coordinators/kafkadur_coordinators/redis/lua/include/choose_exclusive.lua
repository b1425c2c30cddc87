--- The next holder of a lane of type exclusive: the one member there is.
local function choose_exclusive(ctx)
  return ctx.ranks[1] and load_member(ctx, ctx.ranks[1])
end
