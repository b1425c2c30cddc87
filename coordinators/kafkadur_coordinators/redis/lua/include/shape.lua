--- Tests of single values of a request; shapes.py writes the functions that use them.
local MOST_PARTS = 16
-- Only tests have a clock of their own. All other requests must say 0, because a wrong time would be stored.
local TRUSTS_CLOCK = false

local function is_integer(v, least, most)
  return type(v) == 'number' and v >= least and v <= most and v % 1 == 0
end

local function is_text(v, least, most)
  return type(v) == 'string' and #v >= least and #v <= most
end

local function is_empty(v)
  return type(v) == 'table' and next(v) == nil
end

local function is_list(v, fits_each)
  if type(v) ~= 'table' then
    return false
  end
  for i = 1, #v do
    if not fits_each(v[i]) then
      return false
    end
  end
  return true
end

local function are_integers(v, least, most)
  if type(v) ~= 'table' then
    return false
  end
  for i = 1, #v do
    if not is_integer(v[i], least, most) then
      return false
    end
  end
  return true
end

local function has_clock(clock)
  return clock == 0 or TRUSTS_CLOCK
end

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

--- The reply to a malformed request. Nothing was changed.
local function invalid()
  return { 'INVALID', 0, 0, 0 }
end
