--- The state of a subscription in Redis: one hash (KEYS[1]), and a seal (KEYS[2]) that vouches for it.
-- Fields of the hash:
--   state_version  STATE_VERSION, so that other versions know at once that it is not theirs
--   s              packed SubscriptionRow (../rows.py)
--   lists          packed lists: ids of the members in the order of attaching, leases of members that are gone (Orphan),
--                  partitions without a watcher, ids of members that are awaited after a loss
--   definition     JSON: the record of the journal that is in force
--   hungry         packed list: id and number of the last service of each member with free credit, in that order
--   claims         packed list of Made (reclaim-7+3)
--   m:<id>         packed MemberRow
--   l:<token>      packed LeaseRow
--   w:<p>          id of the member that reports how far partition p is readable
--   p:<p>          packed PartitionRow
--   b:<p>          its bits (bits.lua), if it has any
--   i:<p>          the index of its exceptions (runs.lua), if it has any, and
--   r:<p>:<first>  each of their blocks
-- The seal holds the number of the last change (6 bytes) and of fields (4). Each script compares it first. So it notices when
-- one of the keys is gone, cut off, overwritten or an older copy; when a field of the hash can't be read, the seal is broken
-- (guard.lua). All that is lost then, as with a server without its data (I13). A script writes nothing before it has
-- read everything, so it changes all or nothing.
local VERSION_BEFORE = 1 -- store_before.lua
local FIXED_KEYS = 7
local ONE_BLOCK = 2 ^ 24 -- runs, more than there can be
local RUN, RUN_SIZE = '>I6I4I2I6I6', 24 -- runs.lua
local ENTRY, ENTRY_SIZE = '>I6I4I6', 16

local store = {}

do -- a script can have 200 locals at once
  local VERSION_TEXT = text(STATE_VERSION)
  local MOST_AT_ONCE = 1000 -- fields in one call

  --- What works with the state of the version before; made when it is needed, because that takes time.
  local before

  --- Ends the script: its state cannot be read (guard.lua).
  function store.damaged()
    error({ damaged = true })
  end

  --- The values of a packed record, which has so many at least.
  function store.list(packed, least)
    local read, values = pcall(cmsgpack.unpack, packed)
    if not read or type(values) ~= 'table' or #values < least then
      store.damaged()
    end
    return values
  end

--- @rows

  local function digest_of(value)
    return value == '' and '' or redis.sha1hex(value)
  end

  --- Gives a subscription the tables for what a script reads and changes of it.
  local function begin(ctx)
    ctx.put, ctx.dropped = {}, {}
    ctx.members, ctx.changed_members, ctx.leases, ctx.changed_leases = {}, {}, {}, {}
    ctx.watchers, ctx.partitions_read, ctx.wakes, ctx.pushes, ctx.heard = {}, {}, {}, {}, {}
    return ctx
  end

  --- A subscription of which nothing is known.
  local function nothing()
    local ctx = begin(rows.nothing())
    ctx.ranks, ctx.orphans, ctx.unwatched, ctx.awaited = {}, {}, {}, {}
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

  --- The subscription as the packed record and lists say, if the seal fits them; else nil.
  local function sealed(record, lists)
    local ctx = begin(rows.subscription(record))
    local all = store.list(lists, 4)
    ctx.ranks, ctx.orphans, ctx.unwatched, ctx.awaited = all[1], all[2], all[3], all[4]
    ctx.fields = redis.call('HLEN', KEYS[1])
    return answer_of('GET', KEYS[2]) == struct.pack(SEAL, ctx.sequence, ctx.fields) and ctx or nil
  end

  --- A subscription of which something is left that must be removed.
  local function remains()
    local ctx = nothing()
    ctx.damaged = true
    return ctx, true
  end

  --- Reads the subscription's own record; returns it, and whether its version is known. ctx.layout is that version, nil if
  --- there is no state; ctx.damaged: what there is must be removed. id: of the member that calls; what most scripts need is
  --- read with the same command.
  function store.read(id)
    local raw = answer_of('HMGET', KEYS[1], 's', 'lists', 'state_version', 'm:' .. id, 'hungry', 'id')
    if not raw or raw[3] and not tonumber(raw[3]) then
      return remains()
    end
    if raw[1] and raw[3] == VERSION_TEXT then
      local read, ctx = pcall(sealed, raw[1], raw[2] or '')
      if not read and not (type(ctx) == 'table' and ctx.damaged) then
        error(ctx)
      elseif not read or not ctx then
        return remains()
      end
      ctx.layout, ctx.packed_caller, ctx.packed_hungry = STATE_VERSION, raw[4], raw[5]
      return ctx, true
    end
    if raw[6] or raw[3] or redis.call('EXISTS', KEYS[1]) == 1 then
      return before().read(nothing(), raw[3])
    end
    local ctx = nothing()
    ctx.damaged = redis.call('EXISTS', KEYS[2]) == 1
    return ctx, true
  end

  function store.definition(ctx)
    if ctx.id == '' then
      return ''
    end
    local found = redis.call('HGET', KEYS[1], 'definition') or ''
    if ctx.layout == STATE_VERSION and ctx.digest ~= digest_of(found) then
      store.damaged()
    end
    return found
  end

  function store.claims()
    local packed = redis.call('HGET', KEYS[1], 'claims')
    return packed and store.list(packed, 0) or {}
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
    ctx.digest = digest_of(definition)
    put(ctx, 'definition', definition)
  end

  -- -- members

  function store.member(ctx, id)
    if ctx.layout == VERSION_BEFORE then
      return before().member(id)
    end
    local packed = id == ctx.caller and ctx.packed_caller or redis.call('HGET', KEYS[1], 'm:' .. id)
    return packed and rows.member(packed) or nil
  end

  --- Id and number of the last service of each member with free credit, the one that was served longest ago first.
  function store.hungry(ctx)
    if not ctx.hungry then
      if ctx.layout == VERSION_BEFORE then
        ctx.hungry = before().hungry()
      else
        ctx.hungry = ctx.packed_hungry and store.list(ctx.packed_hungry, 0) or {}
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
      return -- before().write writes them all
    elseif id then
      put(ctx, 'w:' .. p, id)
    else
      drop(ctx, 'w:' .. p)
    end
  end

  -- -- leases

  function store.lease(ctx, token)
    if ctx.layout == VERSION_BEFORE then
      return before().lease(token)
    end
    local packed = redis.call('HGET', KEYS[1], 'l:' .. text(token))
    return packed and rows.lease(packed) or nil
  end

  -- -- partitions

  --- The partition of this number, whose keys before begin with KEYS[key]; nil if it has no state.
  function store.partition(ctx, p, key)
    if ctx.layout == VERSION_BEFORE then
      return before().partition(p, key)
    end
    local raw = redis.call('HMGET', KEYS[1], 'p:' .. p, 'b:' .. p, 'i:' .. p)
    if not raw[1] then
      if p < ctx.partitions then
        store.damaged()
      end
      return nil
    end
    local pt = rows.partition(raw[1])
    pt.p, pt.bits, pt.index = p, raw[2] or '', raw[3] or ''
    if digest_of(pt.bits) ~= pt.digest or #pt.index ~= pt.index_length then
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
      before().remove_partition(pt)
    else
      forget_partition(KEYS[1], pt.p, function(field) drop(ctx, field) end)
    end
  end

  local function put_partition(ctx, pt)
    local p = pt.p
    if pt.bits ~= pt.had_bits then
      pt.digest = digest_of(pt.bits)
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
    pt.index_length = #pt.index
    put(ctx, 'p:' .. p, rows.pack_partition(pt))
  end

  -- -- writing

  --- Calls a command that takes many arguments, as often as needed; returns the sum of its answers.
  local function call_with(command, key, arguments)
    local sum = 0
    for i = 1, #arguments, MOST_AT_ONCE do
      sum = sum + redis.call(command, key, unpack(arguments, i, math.min(i + MOST_AT_ONCE - 1, #arguments)))
    end
    return sum
  end

  --- Writes the fields of a hash that were put and dropped; returns how many it has more.
  local function write_fields(key, ctx)
    local gone, set = {}, {}
    for field in pairs(ctx.dropped) do
      gone[#gone + 1] = field
    end
    for field, value in pairs(ctx.put) do
      set[#set + 1], set[#set + 2] = field, value
    end
    -- first HSET: a server without memory refuses it only as the first change of a script
    local added = call_with('HSET', key, set)
    return added - call_with('HDEL', key, gone)
  end

  --- Removes the state.
  local function clear()
    redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
  end

  --- Writes partitions of the state that is installed next. token: of the change or rebuild that does it.
  function store.lay(layout, token, laid)
    if layout == VERSION_BEFORE then -- their keys are not those of the partitions in force
      for _, pt in ipairs(laid) do
        before().remove_partition(pt)
        before().put_partition(pt)
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
      before().write(ctx)
      return
    end
    for id in pairs(ctx.changed_members) do
      if ctx.members[id] then
        put(ctx, 'm:' .. id, rows.pack_member(ctx.members[id]))
      else
        drop(ctx, 'm:' .. id)
      end
    end
    for token in pairs(ctx.changed_leases) do
      if ctx.leases[token] then
        put(ctx, 'l:' .. text(token), rows.pack_lease(ctx.leases[token]))
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
      put(ctx, 'lists', cmsgpack.pack({ ctx.ranks, ctx.orphans, ctx.unwatched, ctx.awaited }))
    end
    put(ctx, 's', rows.pack_subscription(ctx))
    if ctx.is_new then
      put(ctx, 'state_version', VERSION_TEXT)
    end
    local added = write_fields(KEYS[1], ctx)
    local fields = ctx.is_new and redis.call('HLEN', KEYS[1]) or ctx.fields + added
    redis.call('SET', KEYS[2], struct.pack(SEAL, ctx.sequence, fields))
  end

  local made_before

  before = function()
    made_before = made_before or (function()
--- @include "store_before"
      return store_before
    end)()
    return made_before
  end
end
