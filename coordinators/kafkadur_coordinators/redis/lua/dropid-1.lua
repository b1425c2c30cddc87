--- A connection lets its client id go; nothing happens if it does not hold it.
-- KEYS[1]  as in holdid-1
-- ARGV[1]  Request; its member is the id of the connection
-- Reply    Reply (sequence and incarnation are 0)
-- Codes    OK; VERSION
--- @include "context"
--- @shape Request

local request = read_request()
if not request then
  return invalid()
end
local row = redis.call('HMGET', KEYS[1], 'holder', 'time', 'skew')
local now = read_time(request, tonumber(row[2]) or 0, tonumber(row[3]) or 0)
if not is_known(request[Request.state_version]) then
  return head(unnumbered(now), 'VERSION')
end
if row[1] and row[1] == request[Request.member] then
  redis.call('UNLINK', KEYS[1])
end
return head(unnumbered(now), 'OK')
