--- Which server is this, and which history does its data have? ARGV[2] is the run id, which the client read on
-- this very connection: a connection ends with its process. The replication id can change while both live
-- (failover and fail-back), so it is read here; plain finds, because patterns cost as much as the call.
local function server_identity()
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true) + 14
  return ARGV[2] .. ':' .. string.sub(info, at, at + 39)
end
