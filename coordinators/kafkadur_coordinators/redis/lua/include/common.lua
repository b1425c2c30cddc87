--- What all scripts of a subscription share, the short ones included (short.lua), which have nothing of context.lua.
local STATE_VERSION = 3 -- of the layout in store.lua
local SEAL = '>I6I4' -- number of the last change, number of fields
local MAX_LEASES = 1000 -- a member holds at most so many, and so many reservations: it bounds the cost of ending it
local CONVERT_BITS = 65536 -- partition.lua

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
