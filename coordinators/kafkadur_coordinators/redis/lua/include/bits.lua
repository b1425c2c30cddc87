--- Decided offsets of one partition: everything below pt.base, and the one-bits at or above it.
-- Decided means: settled, or listed in the exceptions (runs.lua). An offset in [base, next) that is
-- not decided belongs to exactly one lease. Bit i of the string stands for offset pt.origin + i;
-- pt.origin is a multiple of 8 and never above pt.base.
local TRIM_BITS = 32768

local function bit_length(pt)
  if not pt.bit_len then
    pt.bit_len = redis.call('STRLEN', pt.bits_key) * 8
  end
  return pt.bit_len
end

--- first undecided offset in [from, to), or nil
local function next_undecided(pt, from, to)
  from = math.max(from, pt.base)
  if from >= to then
    return nil
  end
  local n = bit_length(pt)
  local i = from - pt.origin
  if i >= n then
    return from
  end
  local last = math.min(to - pt.origin, n) - 1
  local k = redis.call('BITPOS', pt.bits_key, 0, i, last, 'BIT')
  if k >= 0 then
    return pt.origin + k
  end
  if to - pt.origin > n then
    return pt.origin + n
  end
  return nil
end

--- first offset in [from, to) with a one-bit, or `to`; from must not be below base
local function next_decided(pt, from, to)
  local n = bit_length(pt)
  local i = from - pt.origin
  if from >= to or i >= n then
    return to
  end
  local k = redis.call('BITPOS', pt.bits_key, 1, i, math.min(to - pt.origin, n) - 1, 'BIT')
  if k >= 0 then
    return pt.origin + k
  end
  return to
end

--- moves base over decided offsets and cuts off the bits far below it
local function advance(pt)
  local n = bit_length(pt)
  if n == 0 then
    return
  end
  if pt.base < pt.origin + n then
    pt.base = next_undecided(pt, pt.base, pt.origin + n) or (pt.origin + n)
  end
  if pt.base >= pt.origin + n then
    redis.call('DEL', pt.bits_key)
    pt.bit_len = 0
  elseif pt.base - pt.origin >= TRIM_BITS then
    local cut = math.floor((pt.base - pt.origin) / 8)
    redis.call('SET', pt.bits_key, redis.call('GETRANGE', pt.bits_key, cut, -1))
    pt.origin = pt.origin + cut * 8
    pt.bit_len = n - cut * 8
  end
end

local function fresh_origin(pt)
  if bit_length(pt) == 0 then
    pt.origin = pt.base - pt.base % 8
  end
end

--- marks [s, e) as decided
local function decide_range(pt, s, e)
  s = math.max(s, pt.base)
  if s >= e then
    return
  end
  if s == pt.base then
    pt.base = e
    advance(pt)
    return
  end
  fresh_origin(pt)
  local i, j = s - pt.origin, e - pt.origin
  while i < j and i % 8 ~= 0 do
    redis.call('SETBIT', pt.bits_key, i, 1)
    i = i + 1
  end
  local bytes = math.floor((j - i) / 8)
  if bytes > 0 then
    redis.call('SETRANGE', pt.bits_key, i / 8, string.rep('\255', bytes))
    i = i + bytes * 8
  end
  while i < j do
    redis.call('SETBIT', pt.bits_key, i, 1)
    i = i + 1
  end
  pt.bit_len = math.max(pt.bit_len, math.ceil(j / 8) * 8)
end

--- Nothing at or above offset `from` is decided any more; below it nothing changes.
local function undecide_from(pt, from)
  local n = bit_length(pt)
  if pt.base >= from then
    pt.base = from
    redis.call('DEL', pt.bits_key)
    pt.bit_len, pt.origin = 0, from - from % 8
  elseif from < pt.origin + n then
    local i = from - pt.origin
    local left = redis.call('GETRANGE', pt.bits_key, 0, math.floor(i / 8))
    local last = string.byte(left, #left)
    left = string.sub(left, 1, #left - 1) .. string.char(last - last % 2 ^ (8 - i % 8))
    redis.call('SET', pt.bits_key, left)
    pt.bit_len = #left * 8
  end
end

--- the offset behind the last one-bit of `blob`, whose first bit is offset `from`; `from` if it has none
local function blob_end(from, blob)
  for i = #blob, 1, -1 do
    local byte = string.byte(blob, i)
    if byte ~= 0 then
      local at = from + i * 8
      while byte % 2 == 0 do
        byte, at = byte / 2, at - 1
      end
      return at
    end
  end
  return from
end

--- marks the one-bits of `blob` as decided; its first bit is offset `from`, a multiple of 8
local function decide_blob(pt, from, blob, scratch_key)
  fresh_origin(pt)
  if from < pt.origin then
    blob = string.sub(blob, (pt.origin - from) / 8 + 1)
    from = pt.origin
  end
  if #blob == 0 then
    return
  end
  local lead = (from - pt.origin) / 8
  redis.call('SET', scratch_key, string.rep('\0', lead) .. blob)
  redis.call('BITOP', 'OR', pt.bits_key, pt.bits_key, scratch_key)
  redis.call('DEL', scratch_key)
  pt.bit_len = math.max(pt.bit_len, (lead + #blob) * 8)
  advance(pt)
end
