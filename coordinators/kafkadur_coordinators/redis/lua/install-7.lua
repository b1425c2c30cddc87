--- Installs the definition that is in force in the journal. A repeated or late call changes nothing.
--- With `held` the change goes on until its maker attaches: no other member can come in between.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, InstallRequest
-- Reply    Reply
-- Codes    OK; CHANGED: something newer is installed, or a rebuild is not (any more) this caller's, or its partitions are not
--          laid (any more); VERSION
--- @include "context"
--- @shape InstallRequest

--- Has the state that is laid all partitions?
local function is_laid(token, partitions)
  if redis.call('HGET', KEYS[3], 'token') ~= token then
    return false
  end
  for p = 0, partitions - 1 do
    if redis.call('HEXISTS', KEYS[3], 'p:' .. p) == 0 then
      return false
    end
  end
  return true
end

--- Ends the change, or keeps other members out until its maker has attached.
local function end_or_hold(state, request, now)
  end_change(state)
  if request[InstallRequest.held] > 0 and request[InstallRequest.token] ~= '' then
    state.changing, state.changing_from = request[InstallRequest.token], request[InstallRequest.version]
    state.changing_until = now + request[InstallRequest.held]
  end
end

local request = read_request()
if not request then
  return invalid()
end
local id, version, token = request[InstallRequest.id], request[InstallRequest.version], request[InstallRequest.token]
local grace_wanted = request[InstallRequest.quiet]
local ctx, code = open(request)
if code == 'VERSION' then
  return head(ctx, code)
end
local mine = token ~= '' and ctx.changing == token
if token ~= '' and ctx.rebuild == token then
  mine = ctx.rebuild_server == ctx.here
elseif ctx.rebuild ~= '' and code ~= 'OK' then
  mine = false
end
if code == 'RESTARTED' and ctx.rebuild ~= token then -- first of all the restart must be dealt with (rebuild-7)
  return head(ctx, 'CHANGED')
end
local newer = code == 'OK' and ctx.version >= version
if newer or not mine then
  if mine then
    end_change(ctx)
    end_rebuild(ctx)
    close(ctx)
  end
  return head(ctx, newer and 'OK' or 'CHANGED')
end
if id ~= '' and ctx.id == id and code ~= 'MISSING' and request[InstallRequest.anew] == 0 then
  -- A change was given up: the subscription stays what it is, with the leases of members that are gone.
  if code ~= 'OK' then -- first of all the restart of the server must be dealt with (rebuild-7)
    return head(ctx, 'CHANGED')
  end
  ctx.version, ctx.type = version, request[InstallRequest.type]
  ctx.policy, ctx.new_policy = request[InstallRequest.policy], true
  store.put_definition(ctx, request[InstallRequest.definition])
  end_or_hold(ctx, request, ctx.now)
  close(ctx)
  return head(ctx, 'OK')
end
local new = store.new(request[Request.state_version])
if id ~= '' and new.layout == STATE_VERSION and not is_laid(token, request[InstallRequest.partitions]) then
  return head(ctx, 'CHANGED')
end
if ctx.id == id then
  new.paused, new.begun, new.left, new.verdict = ctx.paused, ctx.begun, ctx.left, ctx.verdict
else
  new.begun = ctx.now
end
new.left = #ctx.ranks > 0 and ctx.now or new.left
local awaited = code == 'RESTARTED' and ctx.ranks or {}
new.grace = grace_wanted > 0 and ctx.now + grace_wanted or 0
new.quiet = new.grace
if was_looked_up(ctx) then -- only members that were attached are awaited, and these listen
  new.grace, new.quiet = #awaited > 0 and new.grace or 0, ctx.quiet
end
if #awaited > 0 then -- attach-7 ends the time without leases when all of them are back
  new.awaited, new.session_ttl = awaited, ctx.session_ttl
end
new.id, new.version, new.type, new.partitions = id, version, request[InstallRequest.type], request[InstallRequest.partitions]
new.incarnation = math.max(request[InstallRequest.incarnation], ctx.incarnation + 1)
new.recovered = grace_wanted > 0 and new.incarnation or 0
new.server, new.unclaimed = ctx.here, request[InstallRequest.unclaimed]
new.policy, new.new_policy = request[InstallRequest.policy], true
new.sequence, new.time, new.skew = ctx.sequence, ctx.now, ctx.skew
end_or_hold(new, request, ctx.now)
store.put_definition(new, request[InstallRequest.definition])
store.replace(new)
ctx.sequence = ctx.sequence + 1
if id ~= '' then
  ctx.incarnation = new.incarnation
end
return head(ctx, 'OK')
