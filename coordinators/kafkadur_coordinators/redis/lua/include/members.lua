--- Members of a subscription: which are attached, which are alive, which have credit.
-- A member is a MemberRow (../rows.py).
local LOOK_AT = 64 -- members, where one is chosen

local function channel(id)
  return string.sub(KEYS[1], 1, -4) .. 'c:' .. id
end

--- one table a member and script call: a change of it is seen by all
local function load_member(ctx, id)
  local m = ctx.members[id]
  if m == nil then
    m = store.member(ctx, id) or false
    if m then
      m.id = id
    end
    ctx.members[id] = m
  end
  return m or nil
end

local function touch_member(ctx, m)
  ctx.changed_members[m.id] = m
end

--- one table a lease and script call: a change of it is seen by all
local function load_lease(ctx, token)
  local l = ctx.leases[token]
  if l == nil then
    l = store.lease(ctx, token) or false
    if l then
      l.token = token
    end
    ctx.leases[token] = l
  end
  return l or nil
end

local function save_lease(ctx, l)
  ctx.leases[l.token], ctx.changed_leases[l.token] = l, true
end

local function drop_lease(ctx, token)
  ctx.leases[token], ctx.changed_leases[token] = false, true
end

--- Each lease has a member, or is an orphan.
local function all_leases(ctx)
  local all = {}
  local function add(token)
    all[#all + 1] = load_lease(ctx, token)
  end
  for _, id in ipairs(ctx.ranks) do
    local m = load_member(ctx, id)
    for _, token in ipairs(m and m.tokens or {}) do
      add(token)
    end
  end
  for _, orphan in ipairs(ctx.orphans) do
    add(orphan[Orphan.token])
  end
  return all
end

--- number of a member from 0, in the order of attaching; nil if it is not attached
local function rank_of(ctx, id)
  for i, other in ipairs(ctx.ranks) do
    if other == id then
      return i - 1
    end
  end
  return nil
end

--- The place of the member of this rank, as replies tell it.
local function role_row(ctx, rank)
  return {
    [Role.rank] = rank, [Role.members] = #ctx.ranks,
    [Role.neighbour] = ctx.ranks[(rank + 1) % #ctx.ranks + 1] or '', [Role.partitions] = ctx.partitions,
  }
end

--- Is partition p at home with the member of this rank? Members are spread over partitions first;
--- when there are more members than partitions, several share one.
local function at_home(ctx, p, rank)
  local count = #ctx.ranks
  if count <= ctx.partitions then
    return p % count == rank
  end
  return rank % ctx.partitions == p
end

--- does this member, if it is attached, prefer partition p?
local function prefers(ctx, m, p)
  local rank = rank_of(ctx, m.id)
  return rank and at_home(ctx, p, rank)
end

--- Do only members of the kind claims prefer partition p? They ask rarely: all members take such a partition.
local function is_everybodys(ctx, p)
  local count = #ctx.ranks
  local rank, step = p, ctx.partitions
  if count <= ctx.partitions then
    rank, step = p % count, count
  end
  for at = rank + 1, count, step do
    local m = load_member(ctx, ctx.ranks[at])
    if m and m.kind == '' then
      return false
    end
  end
  return true
end

--- How many of so many members share one of `partitions`, when there are more members than partitions: they are dealt
--- out in the order of attaching.
local function sharers(count, partitions, p)
  return math.floor((count - p - 1) / partitions) + 1
end

--- does the process of this member listen on its channel now?
local function is_heard(ctx, id)
  if ctx.heard[id] == nil then
    ctx.heard[id] = redis.call('PUBSUB', 'SHARDNUMSUB', channel(id))[2] > 0
  end
  return ctx.heard[id]
end

local function want_wake(ctx, id)
  if id ~= ctx.caller then
    ctx.wakes[id] = true
  end
end

local function wake_all(ctx)
  for _, id in ipairs(ctx.ranks) do
    want_wake(ctx, id)
  end
end

local function send_wakes(ctx)
  for id in pairs(ctx.wakes) do
    redis.call('SPUBLISH', channel(id), ctx.pushes[id] or 'w')
  end
end

--- Sends the wakes and writes what the script changed; the last thing a script does.
local function finish(ctx)
  send_wakes(ctx)
  close(ctx)
end

--- Takes a member off the list of those with free credit.
local function drop_hungry(ctx, id)
  local hungry = store.hungry(ctx)
  for i = 1, #hungry, 2 do
    if hungry[i] == id then
      table.remove(hungry, i)
      table.remove(hungry, i)
      ctx.hungry_changed = true
      return
    end
  end
end

--- Puts a member on the list of those with free credit, or takes it off.
local function set_hungry(ctx, m)
  local hungry = store.hungry(ctx)
  for i = 1, #hungry, 2 do
    if hungry[i] == m.id and hungry[i + 1] == m.served and m.credit > 0 then
      return
    end
  end
  drop_hungry(ctx, m.id)
  if m.credit > 0 then
    local at = #hungry + 1
    while at > 1 and hungry[at - 1] > m.served do
      at = at - 2
    end
    table.insert(hungry, at, m.served)
    table.insert(hungry, at, m.id)
    ctx.hungry_changed = true
  end
end

--- The first members with free credit, at most LOOK_AT: the one that was served longest ago first.
local function first_hungry(ctx)
  local hungry, ids = store.hungry(ctx), {}
  for i = 1, math.min(#hungry, 2 * LOOK_AT), 2 do
    ids[#ids + 1] = hungry[i]
  end
  return ids
end

--- whether the member held it
local function drop_token(m, token)
  for i, held in ipairs(m.tokens) do
    if held == token then
      table.remove(m.tokens, i)
      m.isolated = m.isolated == token and 0 or m.isolated
      m.suspect = m.suspect == token and 0 or m.suspect
      return true
    end
  end
  return false
end

--- Remembers a lease that ends when a script touches its partition. how: as in end_lease
local function add_orphan(ctx, token, how, p)
  ctx.orphans[#ctx.orphans + 1] = { [Orphan.token] = token, [Orphan.how] = how, [Orphan.partition] = p }
  ctx.lists_changed = true
end

--- Takes a member off the list. Its leases become orphans: they end when a script touches their partition,
--- counted as attempts unless the member left in order (`clean`). Its transactions are in doubt then: one may
--- have been committed, or be committed later, without a report to this server.
local function remove_member(ctx, m, clean)
  if m.transacted == 1 and not clean then
    ctx.doubt = 1
  end
  for _, token in ipairs(m.tokens) do
    local l = load_lease(ctx, token)
    if l then
      add_orphan(ctx, token, clean and 1 or m.kind ~= '' and 4 or 2, l.p)
    end
  end
  drop_hungry(ctx, m.id)
  ctx.members[m.id], ctx.changed_members[m.id] = false, m
  local rank = rank_of(ctx, m.id)
  if rank then
    table.remove(ctx.ranks, rank + 1)
    ctx.lists_changed = true
    ctx.left = #ctx.ranks == 0 and ctx.now or ctx.left
  end
  for _, p in ipairs(m.watches) do
    if store.watcher(ctx, p) == m.id then
      store.set_watcher(ctx, p, nil)
      ctx.unwatched[#ctx.unwatched + 1] = p
      ctx.lists_changed = true
    end
  end
  wake_all(ctx)
end

--- A new incarnation: every member has to attach again, and no lease is granted until all have, and have made an
--- exchange, or the longest session is over. Their leased offsets go back, uncounted; their transactions are in doubt.
--- Returns the awaited members: also those without leases, because the server may have lost its last grants.
local function begin_anew(ctx, incarnation)
  local waiting = {}
  for _, id in ipairs(ctx.ranks) do
    local m = load_member(ctx, id)
    if m then
      waiting[#waiting + 1] = id
      ctx.doubt = m.transacted == 1 and 1 or ctx.doubt
    end
  end
  for _, id in ipairs(waiting) do
    remove_member(ctx, load_member(ctx, id), true)
  end
  ctx.ranks, ctx.awaited, ctx.lists_changed = {}, waiting, true
  ctx.incarnation = math.max(incarnation, ctx.incarnation + 1)
  ctx.grace = #waiting > 0 and ctx.now + ctx.session_ttl or 0
  ctx.hungry, ctx.hungry_changed = {}, true
  return waiting
end

--- Ends members whose session is over: time-out passed, or channel silent for PRESENCE_GRACE_MS.
--- Presence is not asked for one session after the server changed: all processes reconnect then.
--- Returns in how many ms a silent member is to be looked at again (-1: there is none).
local function reap(ctx, ask_presence)
  local again, nearest = -1, 0
  local ids = {}
  for i, id in ipairs(ctx.ranks) do
    ids[i] = id
  end
  for _, id in ipairs(ids) do
    local m = load_member(ctx, id)
    if m and id ~= ctx.caller then
      if m.expiry <= ctx.now then
        remove_member(ctx, m, false)
      elseif ask_presence and ctx.now >= ctx.quiet then
        if is_heard(ctx, id) then
          if m.silent ~= 0 then
            m.silent = 0
            touch_member(ctx, m)
          end
        elseif m.silent == 0 then
          m.silent = ctx.now
          touch_member(ctx, m)
          again = PRESENCE_GRACE_MS
        elseif ctx.now - m.silent >= PRESENCE_GRACE_MS then
          remove_member(ctx, m, false)
        elseif again < 0 or again > PRESENCE_GRACE_MS - (ctx.now - m.silent) then
          again = PRESENCE_GRACE_MS - (ctx.now - m.silent)
        end
      end
    end
    if m and ctx.members[id] and (nearest == 0 or m.expiry < nearest) then
      nearest = m.expiry
    end
  end
  ctx.next_expiry = nearest
  return again
end

--- Ends members whose session is over. Returns the names of the members other than the caller, whether one of them holds the
--- whole subscription, and in how many ms a silent one is to be looked at again (reap).
local function others_attached(ctx)
  local again = reap(ctx, true)
  local names, whole = {}, false
  for _, id in ipairs(ctx.ranks) do
    local m = id ~= ctx.caller and load_member(ctx, id)
    if m then
      names[#names + 1] = m.name
      whole = whole or m.kind == 'whole'
    end
  end
  return names, whole, again
end

--- The refusal because of these members.
local function refuse_active(ctx, names, again)
  finish(ctx)
  return head(ctx, 'ACTIVE', { [Active.names] = names, [Active.again] = again })
end
