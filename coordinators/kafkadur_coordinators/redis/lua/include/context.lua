--- The frame of every script: the identity of the server, the time, and the subscription.
-- KEYS of a subscription, the same in every script:
--   1 state    hash: all that is known of the subscription (store.lua)
--   2 seal     string: vouches for the hash (store.lua)
--   3 next     hash: partitions that are laid for the state which is installed next
--   4 .. 7     members, leases, hungry, watchers: only of a state that the version before wrote (store_before.lua)
-- then three keys for each touched partition: state, bits, runs, only of such a state as well.
-- ARGV[2] is the run id of the server (server_identity). ARGV[1] is one msgpack array: a Request and
-- the request of the script. Every reply begins as a Reply. ../wire.py lists the fields of
-- both, and of their parts: scripts.py puts a field's position in place of its name, such as Request.member.
-- Codes: OK, MISSING (nothing known here, or a part of it is lost), RESTARTED (the server is not the one that held this
--   state, or holds an old copy: its caller has seen a later incarnation),
--   INCARNATION (state was rebuilt since), GONE (another subscription has this key now), VERSION
--   (state is of another version), CHANGING (the definition is being changed), and the codes of each script. Every script
--   answers INVALID to a malformed request (shape.lua), before it reads the state.
local PRESENCE_GRACE_MS = 500
local MOST_PARTS = 16

--- @include "common"
--- @include "store"

--- Are the keys of this call those of the subscription and of these partitions, each named once? `at`: the field that is
--- the partition; nil: the list has nothing but partitions.
local function has_keys(list, at)
  if #list > MOST_PARTS or #KEYS ~= FIXED_KEYS + 3 * #list then
    return false
  end
  local named = {}
  for i, one in ipairs(list) do
    local p, key = at and one[at] or one, FIXED_KEYS - 2 + 3 * i
    local ending = ':' .. p .. ':state'
    local root = string.sub(KEYS[key], 1, -6)
    if named[p] or string.sub(KEYS[key], -#ending) ~= ending or KEYS[key + 1] ~= root .. 'bits'
      or KEYS[key + 2] ~= root .. 'runs' then
      return false
    end
    named[p] = true
  end
  return true
end

--- Is a state of this version understood?
local function is_known(version)
  return version == STATE_VERSION or version == VERSION_BEFORE
end

--- The subscription as this script sees it: the fields of SubscriptionRow and the lists (store.lua), and what the script makes of
--- them; and a code, which says why there is none unless it is OK.
local function open(request)
  local ctx, known = store.read(request[Request.member])
  ctx.caller = request[Request.member]
  ctx.now, ctx.skew = read_time(request, ctx.time, ctx.skew)
  ctx.here = server_identity()
  local layout = request[Request.state_version]
  if not known or not is_known(layout) then
    return ctx, 'VERSION'
  end
  ctx.is_new = not ctx.layout
  ctx.layout = ctx.layout or layout
  if ctx.id == '' then
    return ctx, 'MISSING'
  end
  if ctx.server ~= ctx.here or math.abs(request[Request.incarnation]) > ctx.incarnation or ctx.doubt == 2 then
    return ctx, 'RESTARTED'
  end
  if request[Request.subscription_id] ~= '' and request[Request.subscription_id] ~= ctx.id then
    return ctx, 'GONE'
  end
  if request[Request.incarnation] > 0 and request[Request.incarnation] ~= ctx.incarnation then
    return ctx, 'INCARNATION'
  end
  return ctx, 'OK'
end

--- Is this a rebuild on a server that did not restart, only to look up commits in Kafka?
local function was_looked_up(ctx)
  return ctx.doubt == 2 and ctx.server == ctx.here
end

--- The reply with this code; `body` holds the fields that follow those of Reply.
local function head(ctx, code, body)
  local reply = body or {}
  reply[Reply.code], reply[Reply.sequence] = code, ctx.sequence
  reply[Reply.incarnation], reply[Reply.now] = ctx.incarnation, ctx.now
  return reply
end

--- ms until the deadline of the change in progress (0: past); nil if there is none
local function changing_left(ctx)
  return ctx.changing ~= '' and math.max(ctx.changing_until - ctx.now, 0) or nil
end

--- Does the right to rebuild that began with this token still stand, on this server?
local function may_rebuild(ctx, token)
  return ctx.rebuild == token and ctx.rebuild_server == ctx.here
end

--- Ends the right to rebuild.
local function end_rebuild(ctx)
  ctx.rebuild, ctx.rebuild_until, ctx.rebuild_server = '', 0, ''
end

--- Ends the change in progress.
local function end_change(ctx)
  ctx.changing, ctx.changing_until, ctx.changing_from = '', 0, 0
end

--- What replies about a client id begin with.
local function unnumbered(now)
  return { sequence = 0, incarnation = 0, now = now }
end

--- Writes what the script changed; the last thing a script does.
local function close(ctx)
  ctx.sequence, ctx.time = ctx.sequence + 1, ctx.now
  store.write(ctx)
end
