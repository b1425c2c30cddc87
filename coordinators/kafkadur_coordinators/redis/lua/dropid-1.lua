--- A connection lets its client id go; nothing happens if it does not hold it.
-- KEYS[1]  as in holdid-1
-- ARGV[1]  1 state version  2 clock (ms; 0: the server's own)  5 id of the connection
-- Reply    code, 0, 0, time (ms)
-- Codes    OK; VERSION
--- @include "context"

local request = cmsgpack.unpack(ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'holder', 'time', 'skew')
local now = read_time(request, number(row[2], 0), number(row[3], 0))
if request[1] ~= STATE_VERSION then
  return { 'VERSION', 0, 0, now }
end
if row[1] and row[1] == request[5] then
  redis.call('DEL', KEYS[1])
end
return { 'OK', 0, 0, now }
