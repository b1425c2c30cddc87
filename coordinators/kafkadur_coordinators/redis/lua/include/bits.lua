--- Decided offsets of one partition: everything below pt.base, and the one-bits at or above it.
-- Decided means: settled, or listed in the exceptions (runs.lua). An offset in [base, next) that is
-- not decided belongs to exactly one lease. Bit i of the string pt.bits stands for offset pt.origin + i;
-- pt.origin is a multiple of 8 and never above pt.base.
local TRIM_BITS = 32768
local bits = { WORDS = '>' .. string.rep('i4', 64) } -- of 256 bytes

local function bit_length(pt)
  return #pt.bits * 8
end

--- How many bits of a byte come before its first zero.
function bits.ones_before_zero(byte)
  local n = 0
  while byte >= 128 do
    byte, n = byte % 128 * 2, n + 1
  end
  return n
end

--- first undecided offset in [from, to), or nil
local function next_undecided(pt, from, to)
  from = math.max(from, pt.base)
  local i, n = from - pt.origin, bit_length(pt)
  if from >= to then
    return nil
  end
  if i >= n then
    return from
  end
  local at = math.floor(i / 8) + 1
  -- the bits before `from` count as ones
  local byte = bit.bor(string.byte(pt.bits, at), 255 - bit.rshift(255, i % 8))
  if byte == 255 then
    at = string.find(pt.bits, '[^\255]', at + 1)
    byte = at and string.byte(pt.bits, at)
  end
  local found = pt.origin + (at and (at - 1) * 8 + bits.ones_before_zero(byte) or n)
  return found < to and found or nil
end

--- first offset in [from, to) with a one-bit, or `to`; from must not be below base
local function next_decided(pt, from, to)
  local i = from - pt.origin
  if from >= to or i >= bit_length(pt) then
    return to
  end
  local at = math.floor(i / 8) + 1
  local byte = bit.band(string.byte(pt.bits, at), bit.rshift(255, i % 8))
  if byte == 0 then
    at = string.find(pt.bits, '[^%z]', at + 1)
    byte = at and string.byte(pt.bits, at)
  end
  return at and math.min(pt.origin + (at - 1) * 8 + bits.ones_before_zero(255 - byte), to) or to
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
    pt.bits = ''
  elseif pt.base - pt.origin >= TRIM_BITS then
    local cut = math.floor((pt.base - pt.origin) / 8)
    pt.bits = string.sub(pt.bits, cut + 1)
    pt.origin = pt.origin + cut * 8
  end
end

local function fresh_origin(pt)
  if pt.bits == '' then
    pt.origin = pt.base - pt.base % 8
  end
end

--- Makes the bits so many bytes long at least.
function bits.lengthen(pt, bytes)
  if #pt.bits < bytes then
    pt.bits = pt.bits .. string.rep('\0', bytes - #pt.bits)
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
  local i, j = s - pt.origin, e - pt.origin - 1
  local first, last = math.floor(i / 8), math.floor(j / 8)
  bits.lengthen(pt, last + 1)
  local left, right = bit.rshift(255, i % 8), 255 - bit.rshift(127, j % 8)
  local middle
  if first == last then
    middle = string.char(bit.bor(string.byte(pt.bits, first + 1), bit.band(left, right)))
  else
    middle = string.char(bit.bor(string.byte(pt.bits, first + 1), left)) .. string.rep('\255', last - first - 1)
      .. string.char(bit.bor(string.byte(pt.bits, last + 1), right))
  end
  pt.bits = string.sub(pt.bits, 1, first) .. middle .. string.sub(pt.bits, last + 2)
end

--- Nothing at or above offset `from` is decided any more; below it nothing changes.
local function undecide_from(pt, from)
  if pt.base >= from then
    pt.base = from
    pt.bits, pt.origin = '', from - from % 8
  elseif from < pt.origin + bit_length(pt) then
    local i = from - pt.origin
    local bytes = math.floor(i / 8)
    local last = string.byte(pt.bits, bytes + 1)
    pt.bits = string.sub(pt.bits, 1, bytes) .. string.char(last - last % 2 ^ (8 - i % 8))
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

--- The one-bits of both of two texts of equal length.
function bits.both(one, other)
  if not string.find(one, '[^%z]') then
    return other
  end
  local out, length = {}, #one
  local padding = string.rep('\0', -length % 256)
  one, other = one .. padding, other .. padding
  for at = 1, length, 256 do
    local words, others = { struct.unpack(bits.WORDS, one, at) }, { struct.unpack(bits.WORDS, other, at) }
    for i = 1, 64 do
      words[i] = bit.bor(words[i], others[i])
    end
    out[#out + 1] = struct.pack(bits.WORDS, unpack(words, 1, 64))
  end
  return string.sub(table.concat(out), 1, length)
end

--- marks the one-bits of `blob` as decided; its first bit is offset `from`, a multiple of 8
local function decide_blob(pt, from, blob)
  fresh_origin(pt)
  if from < pt.origin then
    blob = string.sub(blob, (pt.origin - from) / 8 + 1)
    from = pt.origin
  end
  if #blob == 0 then
    return
  end
  local lead = (from - pt.origin) / 8
  bits.lengthen(pt, lead + #blob)
  local joined = bits.both(string.sub(pt.bits, lead + 1, lead + #blob), blob)
  pt.bits = string.sub(pt.bits, 1, lead) .. joined .. string.sub(pt.bits, lead + #blob + 1)
  advance(pt)
end
