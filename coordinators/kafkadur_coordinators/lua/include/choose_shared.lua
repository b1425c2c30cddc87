--- The next holder of a range of type shared: round-robin over the members with free credit, starting
--- with the first attached. Members that are at home with the partition come first; a member that holds
--- nothing at all is given work of other partitions when nobody at home has room.
-- Returns the member and how many members could have been chosen; nil if nobody has room.
local LOOK_AT = 64

local function choose_shared(ctx, pt)
  local chosen, idle, count = nil, nil, 0
  for _, id in ipairs(redis.call('ZRANGE', KEYS[4], 0, LOOK_AT - 1)) do
    local m = load_member(ctx, id)
    if not m then
      redis.call('ZREM', KEYS[4], id)
    elseif m.credit > 0 and #m.tokens < MAX_LEASES and (id == ctx.caller or is_heard(ctx, id)) then
      local rank = rank_of(ctx, id)
      if rank and at_home(ctx, pt.p, rank) then
        chosen = chosen or m
        count = count + 1
      elseif #m.tokens == 0 then
        idle = idle or m
      end
    end
  end
  if not chosen and idle then
    return idle, 1
  end
  return chosen, count
end

local function spend(ctx, m, records)
  m.credit = math.max(m.credit - records, 0)
  ctx.served = ctx.served + 1
  m.served = ctx.served
  set_hungry(m)
  touch_member(ctx, m)
end

--- Serves one partition of a shared subscription: exceptions that are due first, then new offsets.
-- A share is what is ready divided by those who want it: one message each in a trickle, all free credit in
-- a backlog.
local function serve_shared(ctx, pt)
  local share
  for _ = 1, MAX_GRANTS do
    local fresh = math.max(pt.avail - pt.next, 0)
    local due = pt.xd >= 0 and pt.xd <= ctx.now
    if fresh == 0 and not due then
      return
    end
    local m, count = choose_shared(ctx, pt)
    if not m then
      return
    end
    local l = due and grant_runs(ctx, pt, m, m.credit)
    if not l and fresh > 0 then
      share = share or math.ceil(fresh / count)
      l = grant(ctx, pt, m, pt.next, pt.next + math.min(m.credit, share, fresh), 0, 'range')
      pt.next = l.e
    end
    if l then
      spend(ctx, m, l.records)
    end
  end
end
