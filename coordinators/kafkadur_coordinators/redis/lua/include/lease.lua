--- A lease as it is stored: packed, under its token.
-- Its marks are those of redelivery.lua; a lease of kind 'runs' or 'ahead' holds the runs with its token (runs.lua), any
-- other all of [s, e).

local function unpack_lease(token, packed)
  local a = cmsgpack.unpack(packed)
  return {
    token = token, p = a[1], s = a[2], e = a[3], member = a[4], marks = a[5], kind = a[6], records = a[7],
    seen = a[8], isolated = a[9], due = a[10],
  }
end

local function save_lease(l)
  redis.call('HSET', KEYS[3], text(l.token), cmsgpack.pack({
    l.p, l.s, l.e, l.member, l.marks, l.kind, l.records, l.seen, l.isolated, l.due,
  }))
end
