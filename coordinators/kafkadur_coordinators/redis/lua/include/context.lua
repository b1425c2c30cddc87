--- The frame of every script: the identity of the server, the time, and the subscription.
-- KEYS of a subscription, the same in every script:
--   1 def      hash: definition, incarnation, counters
--   2 members  hash: member id -> packed member (members.lua)
--   3 leases   hash: token -> packed lease (partition.lua)
--   4 hungry   sorted set: members with free credit, by the number of their last service
--   5 watchers hash: partition -> member that reports how far it is readable
--   6 scratch  string: empty between scripts
-- then three keys for each touched partition: state (hash), bits, runs.
-- ARGV[2] is the run id of the server (server_identity). ARGV[1] is one msgpack array: a Request and
-- the request of the script. Every reply begins as a Reply. ../wire.py lists the fields of
-- both, and of their parts: scripts.py puts a field's position in place of its name, such as Request.member.
-- Codes: OK, MISSING (nothing known here), RESTARTED (the server is not the one that held this state, or holds an old
--   copy: its caller has seen a later incarnation),
--   INCARNATION (state was rebuilt since), GONE (another subscription has this key now), VERSION
--   (state is of another version), CHANGING (the definition is being changed), and the codes of each script. Every script
--   answers INVALID to a malformed request (shape.lua), before it reads the state.
local STATE_VERSION = 1
-- that of a subscription to which a member was attached that settles by transactions: older versions would give away
-- what such a member has committed, so they are to stay out
local TRANSACTED_VERSION = 2
local PRESENCE_GRACE_MS = 500

local function number(text, default)
  return tonumber(text) or default
end

local function text(n)
  return string.format('%.0f', n)
end

--- Which server is this, and which history does its data have? ARGV[2] is the run id, which the client read on
-- this very connection: a connection ends with its process. The replication id can change while both live
-- (failover and fail-back), so it is read here; plain finds, because patterns cost as much as the call.
local function server_identity()
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true) + 14
  return ARGV[2] .. ':' .. string.sub(info, at, at + 39)
end

local FIELDS = {
  'id', 'version', 'incarnation', 'state_version', 'server', 'token', 'sequence', 'time', 'skew', 'type',
  'partitions', 'grace', 'next_expiry', 'attached', 'ranks', 'orphans', 'unwatched', 'quiet', 'served',
  'changing', 'changing_until', 'awaited', 'session_ttl', 'holder', 'policy', 'paused', 'recovered', 'doubt',
}
local LISTS = { 'ranks', 'orphans', 'unwatched', 'awaited' } -- those of the fields that are packed lists

--- Time in ms as the caller says, or the server's. Where the server's clock stepped back behind `last`, the difference
-- is added: that is the new skew.
local function read_time(request, last, skew)
  local clock = request[Request.clock]
  if clock == 0 then
    local t = redis.call('TIME')
    clock = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  end
  local now = clock + skew
  if now < last then
    return last, skew + (last - now)
  end
  return now, skew
end

--- The subscription as this script sees it, or nil and the code that says why not.
local function open(request)
  local raw = redis.call('HMGET', KEYS[1], unpack(FIELDS))
  local row = {}
  for i, name in ipairs(FIELDS) do
    row[name] = raw[i]
  end
  local ctx = {
    row = row, members = {}, changed_members = {}, leases = {}, wakes = {}, heard = {},
    caller = request[Request.member], holder = row.holder or '',
    sequence = number(row.sequence, 0), incarnation = number(row.incarnation, 0), token = number(row.token, 0),
    grace = number(row.grace, 0), next_expiry = number(row.next_expiry, 0), attached = number(row.attached, 0),
    served = number(row.served, 0), quiet = number(row.quiet, 0), partitions = number(row.partitions, 0),
    recovered = number(row.recovered, 0), skew = number(row.skew, 0), session_ttl = number(row.session_ttl, 0),
    policy = row.policy and cmsgpack.unpack(row.policy) or { 0, 0, 0, 0, 1 }, -- redelivery.lua
  }
  for _, name in ipairs(LISTS) do
    ctx[name] = row[name] and cmsgpack.unpack(row[name]) or {}
  end
  ctx.now, ctx.skew = read_time(request, number(row.time, 0), ctx.skew)
  ctx.server = server_identity()
  local written = number(row.state_version, STATE_VERSION)
  local known = written == STATE_VERSION or written == TRANSACTED_VERSION
  if request[Request.state_version] ~= STATE_VERSION or not known then
    return ctx, 'VERSION'
  end
  if not row.id then
    return ctx, 'MISSING'
  end
  if row.server ~= ctx.server or math.abs(request[Request.incarnation]) > ctx.incarnation or row.doubt == '2' then
    return ctx, 'RESTARTED'
  end
  if request[Request.subscription_id] ~= '' and request[Request.subscription_id] ~= row.id then
    return ctx, 'GONE'
  end
  if request[Request.incarnation] > 0 and request[Request.incarnation] ~= ctx.incarnation then
    return ctx, 'INCARNATION'
  end
  return ctx, 'OK'
end

--- Is this a rebuild on a server that did not restart, only to look up commits in Kafka?
local function was_looked_up(ctx)
  return ctx.row.doubt == '2' and ctx.row.server == ctx.server
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
  local changing = ctx.row.changing and ctx.row.changing ~= ''
  return changing and math.max(number(ctx.row.changing_until, 0) - ctx.now, 0) or nil
end

--- Does the right to rebuild that began with this token still stand, on this server?
local function may_rebuild(ctx, token)
  local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_server')
  return row[1] == token and row[2] == ctx.server
end

--- What replies about a client id begin with.
local function unnumbered(now)
  return { sequence = 0, incarnation = 0, now = now }
end

--- Writes what the script changed in the subscription's own record; the last thing a script does.
local function close(ctx)
  ctx.sequence = ctx.sequence + 1
  local set = {
    'sequence', text(ctx.sequence), 'time', text(ctx.now), 'skew', text(ctx.skew), 'token', text(ctx.token),
    'served', text(ctx.served), 'next_expiry', text(ctx.next_expiry), 'grace', text(ctx.grace),
  }
  for _, name in ipairs(LISTS) do
    if ctx[name .. '_changed'] then
      set[#set + 1] = name
      set[#set + 1] = cmsgpack.pack(ctx[name])
    end
  end
  -- doubt 1: a member that commits in Kafka has gone; 2: its commits are being looked up (rebuild-6)
  for _, name in ipairs({ 'left', 'verdict', 'doubt' }) do -- the first two are for people; nothing is decided by them
    if ctx[name] then
      set[#set + 1] = name
      set[#set + 1] = text(ctx[name])
    end
  end
  if ctx.holder_changed then
    set[#set + 1] = 'holder'
    set[#set + 1] = ctx.holder
  end
  if ctx.attached_changed then
    set[#set + 1] = 'attached'
    set[#set + 1] = text(ctx.attached)
    set[#set + 1] = 'session_ttl'
    set[#set + 1] = text(ctx.session_ttl)
  end
  redis.call('HSET', KEYS[1], unpack(set))
end
