--- Tests of single values of a request. shapes.py writes the functions that call them; no script calls them by name.
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

--- The reply to a malformed request. Nothing was changed.
local function invalid()
  return { 'INVALID', 0, 0, 0 }
end
