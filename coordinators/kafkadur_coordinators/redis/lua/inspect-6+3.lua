--- The state of partitions and of all leases, for people, checkpoints and recovery. Changes nothing.
-- KEYS     see include/context.lua; three keys for each partition in ARGV[1][6], at most 16
-- ARGV[1]  6 partitions  7 1: also the leases  8 token of a rebuild, which sees what a restarted server kept ('': none)
-- Reply    head, 5 partitions { partition, base, next, avail, origin, decided above base, runs (runs.lua), seen, bits,
--            offsets that expired unsettled, leader epoch of what lies before avail, offsets lost by truncation },
--          6 leases { token, partition, start, horizon, member id, marks, kind }
--          a partition without state is { partition, -1 }
--          7 epoch of the definition: what is settled was settled since that began
-- Codes    OK, and those of context.lua
--- @include "context"
--- @include "bits"
--- @include "redelivery"
--- @include "runs"
--- @include "members"
--- @include "partition"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code == 'RESTARTED' and request[8] ~= '' then
  local row = redis.call('HMGET', KEYS[1], 'rebuild', 'rebuild_server')
  code = row[1] == request[8] and row[2] == ctx.server and 'OK' or code
end
if code ~= 'OK' then
  return head(ctx, code)
end
local states, leases = {}, {}
for i, p in ipairs(request[6]) do
  local pt = load_partition(ctx, p, 7 + (i - 1) * 3)
  if pt then
    local decided = 0
    if bit_length(pt) > 0 then
      decided = redis.call('BITCOUNT', pt.bits_key, pt.base - pt.origin, bit_length(pt) - 1, 'BIT')
    end
    states[i] = {
      p, pt.base, pt.next, pt.avail, pt.origin, decided, runs_text(pt), pt.seen, redis.call('GET', pt.bits_key) or '',
      pt.expired, pt.epoch, pt.truncated,
    }
  else
    states[i] = { p, -1 }
  end
end
local all = request[7] == 1 and redis.call('HGETALL', KEYS[3]) or {}
for i = 1, #all, 2 do
  local a = cmsgpack.unpack(all[i + 1])
  leases[#leases + 1] = { tonumber(all[i]), a[1], a[2], a[3], a[4], a[5], a[6] }
end
local reply = head(ctx, 'OK')
reply[5] = states
reply[6] = leases
reply[7] = cjson.decode(redis.call('HGET', KEYS[1], 'definition')).epoch or 0
return reply
