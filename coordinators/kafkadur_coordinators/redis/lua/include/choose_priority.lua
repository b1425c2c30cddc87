--- The next holder of a lane of type priority: the attached member with the highest priority, of equal ones the
--- first. A holder keeps the lane until it leaves, or until a better member preempts it: then it drains first.
local function best(ctx)
  local chosen
  for _, id in ipairs(ctx.ranks) do
    local m = load_member(ctx, id)
    if m and (not chosen or m.priority > chosen.priority) and (id == ctx.caller or is_heard(ctx, id)) then
      chosen = m
    end
  end
  return chosen
end

local function choose_priority(ctx)
  local m = ctx.holder ~= '' and load_member(ctx, ctx.holder)
  return m or best(ctx)
end

--- the member that is to have the lane instead of its holder; nil if there is none
local function preempting(ctx, holder)
  local m = best(ctx)
  return m and m.preempt == 1 and m.priority > holder.priority and m or nil
end
