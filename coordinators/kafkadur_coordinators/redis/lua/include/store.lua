--- The state of a subscription in Redis: one hash (KEYS[1]), and a seal (KEYS[2]) that vouches for it.
-- Fields of the hash:
--   state_version  STATE_VERSION, so that other versions know at once that it is not theirs
--   s              packed: the values of SUBSCRIPTION, in that order
--   lists          packed: those of LISTS
--   definition     JSON: the record of the journal that is in force
--   hungry         packed list: id and number of the last service of each member with free credit, in that order
--   claims         packed list of Made (reclaim-7+3)
--   m:<id>         packed member: the values of MEMBER
--   l:<token>      packed lease: those of LEASE
--   w:<p>          id of the member that reports how far partition p is readable
--   p:<p>          packed partition: those of PARTITION, then the lengths of its bits and of its index
--   b:<p>          its bits (bits.lua), if it has any
--   i:<p>          the index of its exceptions (runs.lua), if it has any, and
--   r:<p>:<first>  each of their blocks
-- The seal holds the number of the last change (6 bytes) and of fields (4). Each script compares it first. So it notices when
-- one of the keys is gone, cut off, overwritten or an older copy; when a field of the hash can't be read, the seal is broken
-- (guard.lua). All that is lost then, as with a server without its data (I13). A script writes nothing before it has
-- read everything, so it changes all or nothing.
local STATE_VERSION = 3
local VERSION_BEFORE = 1 -- store_before.lua
local FIXED_KEYS = 7
local ONE_BLOCK = 2 ^ 24 -- runs, more than there can be
local RUN, RUN_SIZE = '>I6I4I2I6I6', 24 -- runs.lua
local ENTRY, ENTRY_SIZE = '>I6I4I6', 16

local store = {}

do -- a script can have 200 locals at once
  local SEAL = '>I6I4'
  local MOST_AT_ONCE = 1000 -- fields in one call

  -- texts are '' and numbers 0 unless something else was said
  local SUBSCRIPTION = {
    'id', 'version', 'incarnation', 'server', 'token', 'sequence', 'time', 'skew', 'type', 'partitions', 'grace',
    'next_expiry', 'attached', 'quiet', 'served', 'changing', 'changing_until', 'changing_from', 'session_ttl', 'holder',
    'paused', 'recovered', 'doubt', 'rebuild', 'rebuild_until', 'rebuild_server', 'begun', 'left', 'verdict', 'unclaimed',
    'transacted', 'digest', 'policy',
  }
  local TEXTS = {
    id = true, server = true, type = true, changing = true, holder = true, rebuild = true, rebuild_server = true,
    digest = true, -- of the definition
  }
  local LISTS = { 'ranks', 'orphans', 'unwatched', 'awaited' }
  local MEMBER = {
    'n', 'expiry', 'credit', 'exchange', 'tokens', 'silent', 'name', 'refused', 'ttl', 'watches', 'kind', 'served', 'since',
    'priority', 'preempt', 'isolated', 'suspect', 'reservations', 'transacted',
  }
  local LEASE = { 'p', 's', 'e', 'member', 'marks', 'kind', 'records', 'seen', 'isolated', 'due' }
  local PARTITION = {
    'base', 'next', 'readable_end', 'origin', 'xd', 'seen', 'lane', 'keeper', 'expired', 'recovered', 'epoch', 'truncated',
    'expired_read',
  }
  -- of the subscription, as stored by the version before; what is missing is this (redelivery.lua)
  local NO_POLICY = { 0, 0, 0, 0, 1 }

  local store_before = {}

  --- Ends the script: its state cannot be read (guard.lua).
  function store.damaged()
    error({ damaged = true })
  end

  --- A packed record as a table with these names.
  local function unpacked(packed, names, into)
    local read, values = pcall(cmsgpack.unpack, packed)
    if not read or type(values) ~= 'table' or #values < #names then
      store.damaged()
    end
    local found = into or {}
    for i, name in ipairs(names) do
      found[name] = values[i]
    end
    return found, values
  end

  local function unpacked_list(packed)
    local read, values = pcall(cmsgpack.unpack, packed)
    if not read or type(values) ~= 'table' then
      store.damaged()
    end
    return values
  end

  local function packed_values(from, names)
    local values = {}
    for i, name in ipairs(names) do
      values[i] = from[name]
    end
    return values
  end

  --- A subscription of which nothing is known.
  local function nothing()
    local ctx = {
      policy = NO_POLICY, put = {}, dropped = {}, members = {}, changed_members = {}, leases = {}, changed_leases = {},
      watchers = {}, changed_watchers = {}, partitions_read = {}, wakes = {}, heard = {},
    }
    for _, name in ipairs(SUBSCRIPTION) do
      if name ~= 'policy' then
        ctx[name] = TEXTS[name] and '' or 0
      end
    end
    for _, name in ipairs(LISTS) do
      ctx[name] = {}
    end
    return ctx
  end

  --- A subscription that is installed anew, in this layout.
  function store.new(layout)
    local ctx = nothing()
    ctx.layout, ctx.is_new = layout, true
    return ctx
  end

  --- The answer of a command, or nil if the key holds something else than it should.
  local function answer_of(...)
    local answer = redis.pcall(...)
    if type(answer) ~= 'table' or not answer.err then
      return answer
    elseif string.find(answer.err, 'WRONGTYPE', 1, true) then
      return nil
    end
    error(answer)
  end

  --- Does the seal fit the state whose last change has this number?
  local function is_sealed(sequence)
    local seal = answer_of('GET', KEYS[2])
    return type(seal) == 'string' and seal == struct.pack(SEAL, sequence, redis.call('HLEN', KEYS[1]))
  end

  --- Reads the subscription's own record; returns it, and whether its version is known. ctx.layout is that version, nil if
  --- there is no state; ctx.damaged: what there is must be removed.
  function store.read()
    local ctx = nothing()
    local raw = answer_of('HMGET', KEYS[1], 's', 'lists', 'state_version', 'id')
    if not raw or raw[3] and not tonumber(raw[3]) then
      ctx.damaged = true
      return ctx, true
    end
    if raw[1] and raw[3] == text(STATE_VERSION) then
      local read = pcall(unpacked, raw[1], SUBSCRIPTION, ctx)
      read = read and raw[2] and pcall(unpacked, raw[2], LISTS, ctx) and is_sealed(ctx.sequence)
      if read then
        ctx.layout = STATE_VERSION
        return ctx, true
      end
      ctx = nothing()
      ctx.damaged = true
      return ctx, true
    end
    if raw[4] or raw[3] or redis.call('EXISTS', KEYS[1]) == 1 then
      return store_before.read(ctx, raw[3])
    end
    ctx.damaged = redis.call('EXISTS', KEYS[2]) == 1
    return ctx, true
  end

  function store.definition(ctx)
    if ctx.id == '' then
      return ''
    end
    local found = redis.call('HGET', KEYS[1], 'definition') or ''
    if ctx.layout == STATE_VERSION and ctx.digest ~= (found == '' and '' or redis.sha1hex(found)) then
      store.damaged()
    end
    return found
  end

  function store.claims()
    local packed = redis.call('HGET', KEYS[1], 'claims')
    return packed and unpacked_list(packed) or {}
  end

  --- A record that the script is going to write: a field of the hash.
  local function put(ctx, field, value)
    ctx.put[field], ctx.dropped[field] = value, nil
  end

  local function drop(ctx, field)
    ctx.put[field], ctx.dropped[field] = nil, true
  end

  function store.put_claims(ctx, claims)
    if claims then
      put(ctx, 'claims', cmsgpack.pack(claims))
    else
      drop(ctx, 'claims')
    end
  end

  function store.put_definition(ctx, definition)
    ctx.digest = redis.sha1hex(definition)
    put(ctx, 'definition', definition)
  end

  -- -- members

  function store.member(ctx, id)
    if ctx.layout == VERSION_BEFORE then
      return store_before.member(id)
    end
    local packed = redis.call('HGET', KEYS[1], 'm:' .. id)
    return packed and unpacked(packed, MEMBER) or nil
  end

  --- Id and number of the last service of each member with free credit, the one that was served longest ago first.
  function store.hungry(ctx)
    if not ctx.hungry then
      if ctx.layout == VERSION_BEFORE then
        ctx.hungry = store_before.hungry()
      else
        local packed = redis.call('HGET', KEYS[1], 'hungry')
        ctx.hungry = packed and unpacked_list(packed) or {}
      end
    end
    return ctx.hungry
  end

  --- The member that reports how far a partition is readable; nil if there is none.
  function store.watcher(ctx, p)
    if ctx.watchers[p] == nil then
      if ctx.layout == VERSION_BEFORE then
        ctx.watchers[p] = redis.call('HGET', KEYS[7], p)
      else
        ctx.watchers[p] = redis.call('HGET', KEYS[1], 'w:' .. p)
      end
    end
    return ctx.watchers[p] or nil
  end

  --- id: nil: no member any more
  function store.set_watcher(ctx, p, id)
    ctx.watchers[p] = id or false
    if ctx.layout == VERSION_BEFORE then
      ctx.changed_watchers[p] = id or false
    elseif id then
      put(ctx, 'w:' .. p, id)
    else
      drop(ctx, 'w:' .. p)
    end
  end

  -- -- leases

  function store.lease(ctx, token)
    if ctx.layout == VERSION_BEFORE then
      return store_before.lease(token)
    end
    local packed = redis.call('HGET', KEYS[1], 'l:' .. text(token))
    return packed and unpacked(packed, LEASE) or nil
  end

  -- -- partitions

  --- The partition of this number, whose keys before begin with KEYS[key]; nil if it has no state.
  function store.partition(ctx, p, key)
    local pt = { p = p }
    if ctx.layout == VERSION_BEFORE then
      return store_before.partition(pt, key)
    end
    local raw = redis.call('HMGET', KEYS[1], 'p:' .. p, 'b:' .. p, 'i:' .. p)
    if not raw[1] then
      if p < ctx.partitions then
        store.damaged()
      end
      return nil
    end
    local _, values = unpacked(raw[1], PARTITION, pt)
    pt.bits, pt.index = raw[2] or '', raw[3] or ''
    if #pt.bits ~= values[#PARTITION + 1] or #pt.index ~= values[#PARTITION + 2] then
      store.damaged()
    end
    pt.had_bits, pt.had_index, pt.blocks, pt.changed_blocks = pt.bits, pt.index, {}, {}
    return pt
  end

  --- A block of exceptions.
  function store.block(pt, first)
    return redis.call('HGET', KEYS[1], 'r:' .. pt.p .. ':' .. text(first))
  end

  --- Takes a partition and all that belongs to it from a hash; `gone` is told of each field.
  local function forget_partition(key, p, gone)
    gone('p:' .. p)
    gone('b:' .. p)
    gone('i:' .. p)
    local index = redis.call('HGET', key, 'i:' .. p) or ''
    for at = 1, #index, ENTRY_SIZE do
      gone('r:' .. p .. ':' .. text(struct.unpack(ENTRY, index, at)))
    end
  end

  --- A partition is laid anew: what there is of it goes.
  function store.remove_partition(ctx, pt)
    if ctx.layout == VERSION_BEFORE then
      store_before.remove_partition(pt)
    else
      forget_partition(KEYS[1], pt.p, function(field) drop(ctx, field) end)
    end
  end

  local function put_partition(ctx, pt)
    local p = pt.p
    if pt.bits ~= pt.had_bits then
      if pt.bits == '' then
        drop(ctx, 'b:' .. p)
      else
        put(ctx, 'b:' .. p, pt.bits)
      end
    end
    if pt.index ~= pt.had_index then
      if pt.index == '' then
        drop(ctx, 'i:' .. p)
      else
        put(ctx, 'i:' .. p, pt.index)
      end
    end
    for first, block in pairs(pt.changed_blocks) do
      local field = 'r:' .. p .. ':' .. text(first)
      if block then
        put(ctx, field, pt.blocks[first])
      else
        drop(ctx, field)
      end
    end
    local values = packed_values(pt, PARTITION)
    values[#values + 1], values[#values + 2] = #pt.bits, #pt.index
    put(ctx, 'p:' .. p, cmsgpack.pack(values))
  end

  -- -- writing

  --- Calls a command that takes many arguments, as often as needed.
  local function call_with(command, key, arguments)
    for i = 1, #arguments, MOST_AT_ONCE do
      redis.call(command, key, unpack(arguments, i, math.min(i + MOST_AT_ONCE - 1, #arguments)))
    end
  end

  local function write_fields(key, ctx)
    local gone, set = {}, {}
    for field in pairs(ctx.dropped) do
      gone[#gone + 1] = field
    end
    for field, value in pairs(ctx.put) do
      set[#set + 1], set[#set + 2] = field, value
    end
    call_with('HSET', key, set) -- first: a server without memory refuses it only as the first change of a script
    call_with('HDEL', key, gone)
  end

  --- Removes the state.
  local function clear()
    redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
  end

  --- Writes partitions of the state that is installed next. token: of the change or rebuild that does it.
  function store.lay(layout, token, laid)
    if layout == VERSION_BEFORE then -- their keys are not those of the partitions in force
      for _, pt in ipairs(laid) do
        store_before.remove_partition(pt)
        store_before.put_partition(pt)
      end
      return
    end
    if answer_of('HGET', KEYS[3], 'token') ~= token then
      redis.call('UNLINK', KEYS[3])
    end
    local fields = { put = { token = token }, dropped = {} }
    for _, pt in ipairs(laid) do
      forget_partition(KEYS[3], pt.p, function(field) drop(fields, field) end)
      put_partition(fields, pt)
    end
    write_fields(KEYS[3], fields)
  end

  --- Puts a new state in place of the one there is: that of the partitions which are laid. Without an id: none.
  function store.replace(new)
    clear()
    if new.id == '' or new.layout == VERSION_BEFORE then
      redis.call('UNLINK', KEYS[3])
    else
      redis.call('RENAME', KEYS[3], KEYS[1])
      drop(new, 'token')
    end
    if new.id ~= '' then
      new.sequence = new.sequence + 1
      store.write(new)
    end
  end

  --- Writes all that the script changed.
  function store.write(ctx)
    if ctx.damaged then
      clear()
    end
    if ctx.layout == VERSION_BEFORE then
      store_before.write(ctx)
      return
    end
    for id in pairs(ctx.changed_members) do
      if ctx.members[id] then
        put(ctx, 'm:' .. id, cmsgpack.pack(packed_values(ctx.members[id], MEMBER)))
      else
        drop(ctx, 'm:' .. id)
      end
    end
    for token in pairs(ctx.changed_leases) do
      if ctx.leases[token] then
        put(ctx, 'l:' .. text(token), cmsgpack.pack(packed_values(ctx.leases[token], LEASE)))
      else
        drop(ctx, 'l:' .. text(token))
      end
    end
    for _, pt in pairs(ctx.partitions_read) do
      if pt.changed then
        put_partition(ctx, pt)
      end
    end
    if ctx.hungry_changed then
      put(ctx, 'hungry', cmsgpack.pack(ctx.hungry))
    end
    if ctx.lists_changed or ctx.is_new then
      put(ctx, 'lists', cmsgpack.pack(packed_values(ctx, LISTS)))
    end
    put(ctx, 's', cmsgpack.pack(packed_values(ctx, SUBSCRIPTION)))
    if ctx.is_new then
      put(ctx, 'state_version', text(STATE_VERSION))
    end
    write_fields(KEYS[1], ctx)
    redis.call('SET', KEYS[2], struct.pack(SEAL, ctx.sequence, redis.call('HLEN', KEYS[1])))
  end

--- @include "store_before"
end
