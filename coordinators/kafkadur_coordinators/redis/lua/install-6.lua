--- Installs the definition that is in force in the journal. A repeated or late call changes nothing.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, InstallRequest
-- Reply    Reply
-- Codes    OK; CHANGED: something newer is installed, or a rebuild is not (any more) this caller's; VERSION
--- @include "context"
--- @shape InstallRequest

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
local mine = ctx.row.changing == token
local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_server')
if row[1] == token then
  mine = row[2] == ctx.server
elseif row[1] and row[1] ~= '' and code ~= 'OK' then
  mine = false
end
if code == 'RESTARTED' and row[1] ~= token then -- first of all the restart must be dealt with (rebuild-6)
  return head(ctx, 'CHANGED')
end
local newer = code == 'OK' and number(ctx.row.version, 0) >= version
if newer or not mine then
  if mine then
    redis.call('HDEL', KEYS[1], 'changing', 'changing_until', 'changing_from', 'rebuild', 'rebuild_until', 'rebuild_server')
  end
  return head(ctx, newer and 'OK' or 'CHANGED')
end
if id ~= '' and ctx.row.id == id and code ~= 'MISSING' and request[InstallRequest.anew] == 0 then
  -- A change was given up: the subscription stays what it is, with the leases of members that are gone.
  if code ~= 'OK' then -- first of all the restart of the server must be dealt with (rebuild-6)
    return head(ctx, 'CHANGED')
  end
  redis.call('HSET', KEYS[1], 'version', text(version), 'definition', request[InstallRequest.definition],
    'type', request[InstallRequest.type],
    'policy', cmsgpack.pack(request[InstallRequest.policy]))
  redis.call('HDEL', KEYS[1], 'changing', 'changing_until', 'changing_from')
  close(ctx)
  return head(ctx, 'OK')
end
local sequence, time, skew = ctx.sequence + 1, ctx.now, ctx.skew
local paused = ctx.row.id == id and ctx.row.paused or '0'
local awaited = code == 'RESTARTED' and ctx.ranks or {}
local times = ctx.row.id == id and redis.call('HMGET', KEYS[1], 'begun', 'left', 'verdict') or {}
local incarnation = math.max(request[InstallRequest.incarnation], ctx.incarnation + 1)
local grace = grace_wanted > 0 and time + grace_wanted or 0
local quiet = grace
if was_looked_up(ctx) then -- only members that were attached are awaited, and these listen
  grace, quiet = #awaited > 0 and grace or 0, ctx.quiet
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
if id ~= '' then
  redis.call('HSET', KEYS[1], 'id', id, 'version', text(version), 'definition', request[InstallRequest.definition],
    'type', request[InstallRequest.type],
    'partitions', text(request[InstallRequest.partitions]), 'incarnation', text(incarnation),
    'state_version', text(STATE_VERSION), 'server', ctx.server, 'sequence', text(sequence), 'time', text(time),
    'skew', text(skew), 'grace', text(grace), 'quiet', text(quiet),
    'policy', cmsgpack.pack(request[InstallRequest.policy]),
    'unclaimed', text(request[InstallRequest.unclaimed]), 'paused', paused,
    'begun', times[1] or text(time), 'left', #ctx.ranks > 0 and text(time) or times[2] or '0', 'verdict', times[3] or '0',
    'recovered', grace_wanted > 0 and text(incarnation) or '0')
  if #awaited > 0 then -- attach-6 ends the time without leases when all of them are back
    redis.call('HSET', KEYS[1], 'awaited', cmsgpack.pack(awaited), 'session_ttl', text(ctx.session_ttl))
  end
  ctx.incarnation = incarnation
end
ctx.sequence = sequence
return head(ctx, 'OK')
