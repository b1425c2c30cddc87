--- Installs what the journal says is in force. Repeating it, or coming late, changes nothing.
-- KEYS     see include/context.lua
-- ARGV[1]  6 subscription id ('': unsubscribed)  7 version  8 definition (JSON)  9 type  10 partitions
--          11 incarnation  12 token of the change or of the rebuild that ends with this
--          13 ms without fresh leases; where a restarted server kept who was attached, not longer than they need to be back
--          14 redelivery policy (redelivery.lua)
--          15 1: the same subscription has other lanes of keys, or was an older copy: its partitions were laid anew
--          16 leases of incarnations below this one cannot be claimed (reclaim-6+3; 0: all can)
-- Reply    head
-- Codes    OK; CHANGED: something newer is installed, or a rebuild is not (any more) this caller's; VERSION
--- @include "context"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code == 'VERSION' then
  return head(ctx, code)
end
local mine = ctx.row.changing == request[12]
local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_server')
if row[1] == request[12] then
  mine = row[2] == ctx.server
elseif row[1] and row[1] ~= '' and code ~= 'OK' then
  mine = false
end
if code == 'RESTARTED' and row[1] ~= request[12] then -- first of all the restart must be dealt with (rebuild-6)
  return head(ctx, 'CHANGED')
end
local newer = code == 'OK' and number(ctx.row.version, 0) >= request[7]
if newer or not mine then
  if mine then
    redis.call('HDEL', KEYS[1], 'changing', 'changing_until', 'changing_from', 'rebuild', 'rebuild_until', 'rebuild_server')
  end
  return head(ctx, newer and 'OK' or 'CHANGED')
end
if request[6] ~= '' and ctx.row.id == request[6] and code ~= 'MISSING' and request[15] == 0 then
  -- A change was given up: the subscription stays what it is, with what members who are gone still hold of it.
  if code ~= 'OK' then -- first of all the restart of the server must be dealt with (rebuild-6)
    return head(ctx, 'CHANGED')
  end
  redis.call('HSET', KEYS[1], 'version', text(request[7]), 'definition', request[8], 'type', request[9],
    'policy', cmsgpack.pack(request[14]))
  redis.call('HDEL', KEYS[1], 'changing', 'changing_until', 'changing_from')
  close(ctx)
  return head(ctx, 'OK')
end
local sequence, time, skew = ctx.sequence + 1, ctx.now, ctx.skew
local paused = ctx.row.id == request[6] and ctx.row.paused or '0'
local awaited = code == 'RESTARTED' and ctx.ranks or {}
local times = ctx.row.id == request[6] and redis.call('HMGET', KEYS[1], 'begun', 'left', 'verdict') or {}
local grace = request[13] > 0 and time + request[13] or 0
local quiet = grace
if was_looked_up(ctx) then -- nobody is awaited but who was attached, and these listen
  grace, quiet = #awaited > 0 and grace or 0, ctx.quiet
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
if request[6] ~= '' then
  redis.call('HSET', KEYS[1], 'id', request[6], 'version', text(request[7]), 'definition', request[8], 'type', request[9],
    'partitions', text(request[10]), 'incarnation', text(math.max(request[11], ctx.incarnation + 1)),
    'state_version', text(STATE_VERSION), 'server', ctx.server, 'sequence', text(sequence), 'time', text(time),
    'skew', text(skew), 'grace', text(grace), 'quiet', text(quiet), 'policy', cmsgpack.pack(request[14]),
    'unclaimed', text(request[16]), 'paused', paused,
    'begun', times[1] or text(time), 'left', #ctx.ranks > 0 and text(time) or times[2] or '0', 'verdict', times[3] or '0',
    'recovered', request[13] > 0 and text(math.max(request[11], ctx.incarnation + 1)) or '0')
  if #awaited > 0 then -- attach-6 ends the time without leases when all of them are back
    redis.call('HSET', KEYS[1], 'awaited', cmsgpack.pack(awaited), 'session_ttl', text(ctx.session_ttl))
  end
  ctx.incarnation = math.max(request[11], ctx.incarnation + 1)
end
ctx.sequence = sequence
return head(ctx, 'OK')
