--- The state of a subscription as the version before stores it: each record under a key of its own, so that no call notices
--- when one is lost. This version works with it, so that processes of both versions can share a subscription.
-- KEYS[1] hash: a field for each value of SubscriptionRow (../rows.py), the packed lists, the definition, the claims, and
--   state_version
--   (TRANSACTED_BEFORE once a member was attached that settles by transactions); KEYS[4] members; KEYS[5] leases;
--   KEYS[6] sorted set: members with free credit by the number of their last service; KEYS[7] watchers by partition.
-- Of each partition: state (hash), bits, runs (exceptions, all in one block).
local store_before = {}
-- after a member was attached that settles by transactions
local TRANSACTED_BEFORE = 2
local LISTS = { 'ranks', 'orphans', 'unwatched', 'awaited' }
--- @names SubscriptionRow
--- @names PartitionRow
local RENAMED = { readable_end = 'avail', xd = 'due' } -- names of those fields that differ

function store_before.read(ctx, written)
  local version = tonumber(written or VERSION_BEFORE)
  ctx.layout, ctx.transacted = VERSION_BEFORE, version == TRANSACTED_BEFORE and 1 or 0
  if version ~= VERSION_BEFORE and version ~= TRANSACTED_BEFORE then
    return ctx, false
  end
  for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(subscription_names))) do
    local name = subscription_names[i]
    if value and name == 'policy' then
      ctx.policy = store.list(value, 0)
    elseif value and type(ctx[name]) == 'string' then
      ctx[name] = value
    elseif value then
      ctx[name] = tonumber(value) or 0
    end
  end
  for i, packed in ipairs(redis.call('HMGET', KEYS[1], unpack(LISTS))) do
    ctx[LISTS[i]] = packed and store.list(packed, 0) or {}
  end
  ctx.read = {}
  for _, name in ipairs(subscription_names) do
    ctx.read[name] = ctx[name]
  end
  return ctx, true
end

function store_before.member(id)
  local packed = redis.call('HGET', KEYS[4], id)
  if not packed then
    return nil
  end
  local values = store.list(packed, 18)
  values[19] = values[19] or 0 -- transacted: a still earlier version left it out
  return rows.member(cmsgpack.pack(values))
end

function store_before.hungry()
  local found = redis.call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES')
  for i = 2, #found, 2 do
    found[i] = tonumber(found[i])
  end
  return found
end

function store_before.lease(token)
  local packed = redis.call('HGET', KEYS[5], text(token))
  return packed and rows.lease(packed) or nil
end

--- Names of the values of a partition, here and as they are stored.
local function partition_fields()
  local names, stored = {}, {}
  for i, name in ipairs(partition_names) do
    if name ~= 'digest' and name ~= 'index_length' then
      names[i], stored[i] = name, RENAMED[name] or name
    end
  end
  return names, stored
end

function store_before.partition(p, key)
  local names, stored = partition_fields()
  local row = redis.call('HMGET', KEYS[key], unpack(stored))
  if not row[1] then
    return nil
  end
  local pt = { p = p, key = key }
  for i, name in ipairs(names) do
    pt[name] = name == 'keeper' and (row[i] or '') or tonumber(row[i] or (name == 'epoch' and -1 or 0))
  end
  pt.bits = redis.call('GET', KEYS[key + 1]) or ''
  local runs = redis.call('GET', KEYS[key + 2]) or ''
  pt.index, pt.blocks, pt.changed_blocks = '', {}, {}
  if runs ~= '' then
    pt.index, pt.blocks[0] = struct.pack(ENTRY, 0, #runs / RUN_SIZE, math.max(pt.xd, 0)), runs
  end
  pt.block_runs, pt.had_bits, pt.had_runs = ONE_BLOCK, pt.bits, runs
  return pt
end

local function put_text(key, value)
  if value == '' then
    redis.call('UNLINK', key)
  else
    redis.call('SET', key, value)
  end
end

function store_before.put_partition(pt)
  local set, names, stored = {}, partition_fields()
  for i, name in ipairs(names) do
    set[#set + 1], set[#set + 2] = stored[i], name == 'keeper' and pt.keeper or text(pt[name])
  end
  redis.call('HSET', KEYS[pt.key], unpack(set))
  if pt.bits ~= pt.had_bits then
    put_text(KEYS[pt.key + 1], pt.bits)
  end
  local runs = pt.index ~= '' and pt.blocks[struct.unpack(ENTRY, pt.index)] or ''
  if runs ~= pt.had_runs then
    put_text(KEYS[pt.key + 2], runs)
  end
end

function store_before.remove_partition(pt)
  redis.call('UNLINK', KEYS[pt.key], KEYS[pt.key + 1], KEYS[pt.key + 2])
end

--- Writes all that the script changed.
function store_before.write(ctx)
  for id in pairs(ctx.changed_members) do
    if ctx.members[id] then
      redis.call('HSET', KEYS[4], id, rows.pack_member(ctx.members[id]))
    else
      redis.call('HDEL', KEYS[4], id)
    end
  end
  for token in pairs(ctx.changed_leases) do
    if ctx.leases[token] then
      redis.call('HSET', KEYS[5], text(token), rows.pack_lease(ctx.leases[token]))
    else
      redis.call('HDEL', KEYS[5], text(token))
    end
  end
  for _, pt in pairs(ctx.partitions_read) do
    if pt.changed then
      store_before.put_partition(pt)
    end
  end
  if ctx.hungry_changed then
    redis.call('UNLINK', KEYS[6])
    for i = 1, #ctx.hungry, 2 do
      redis.call('ZADD', KEYS[6], ctx.hungry[i + 1], ctx.hungry[i])
    end
  end
  for p, id in pairs(ctx.watchers) do
    if id then
      redis.call('HSET', KEYS[7], p, id)
    else
      redis.call('HDEL', KEYS[7], p)
    end
  end
  local read = ctx.read or nothing()
  local set = { 'state_version', text(ctx.transacted == 1 and TRANSACTED_BEFORE or VERSION_BEFORE) }
  for _, name in ipairs(subscription_names) do
    local value = ctx[name]
    if name ~= 'policy' and name ~= 'transacted' and name ~= 'digest' and value ~= read[name] then
      set[#set + 1], set[#set + 2] = name, type(value) == 'string' and value or text(value)
    end
  end
  if ctx.new_policy then
    set[#set + 1], set[#set + 2] = 'policy', cmsgpack.pack(ctx.policy)
  end
  if ctx.lists_changed then
    for _, name in ipairs(LISTS) do
      set[#set + 1], set[#set + 2] = name, cmsgpack.pack(ctx[name])
    end
  end
  redis.call('HSET', KEYS[1], unpack(set))
  write_fields(KEYS[1], ctx)
end
