--- A connection takes its client id, or goes on to hold it: one live connection has it (rule C1).
-- A holder that does not listen on its channel any more counts as gone after PRESENCE_GRACE_MS; one that listens, when its
-- time-out has passed. A holder that another connection waits for is woken: a live one renews at once, and shows it.
-- KEYS[1]  hash: holder, name, since, ttl, expiry, renewals, silent, server, quiet, time, skew
-- ARGV[1]  Request (the member is the id of the connection; subscription and incarnation are not used), HoldRequest;
--          ARGV[2] as in include/context.lua
-- Reply    Reply (sequence and incarnation are 0); with HELD also Held
-- Codes    OK; HELD: another connection holds it; VERSION
--- @include "context"
--- @shape HoldRequest

local function number(value, default)
  return tonumber(value) or default
end

local request = read_request()
if not request then
  return invalid()
end
local raw = redis.call('HMGET', KEYS[1], 'holder', 'name', 'since', 'ttl', 'expiry', 'renewals', 'silent', 'server',
  'quiet', 'time', 'skew')
local holder, name, held_by = raw[1] or '', raw[2] or '', raw[8]
local since, ttl, expiry, renewals = number(raw[3], 0), number(raw[4], 0), number(raw[5], 0), number(raw[6], 0)
local silent, quiet = number(raw[7], 0), number(raw[9], 0)
local now, skew = read_time(request, number(raw[10], 0), number(raw[11], 0))
if not is_known(request[Request.state_version]) then
  return head(unnumbered(now), 'VERSION')
end
local server = server_identity()
if held_by and held_by ~= server then -- all connect anew then: presence says nothing for a while
  quiet = now + ttl
  expiry = math.max(expiry, quiet)
end
local caller, wanted = '' .. request[Request.member], request[HoldRequest.ttl] -- raises an error unless it is text
if holder ~= '' and holder ~= caller and expiry > now then
  local channel = string.sub(KEYS[1], 1, -7) .. 'c:' .. holder
  local left = expiry - now
  if now < quiet or redis.call('PUBSUB', 'SHARDNUMSUB', channel)[2] > 0 then
    silent = 0
  else
    silent = silent > 0 and silent or now
    left = math.min(left, silent + PRESENCE_GRACE_MS - now)
  end
  if left > 0 then
    redis.call('HSET', KEYS[1], 'silent', text(silent), 'expiry', text(expiry), 'server', server, 'quiet', text(quiet),
      'time', text(now), 'skew', text(skew))
    redis.call('SPUBLISH', channel, 'w')
    return head(unnumbered(now), 'HELD', {
      [Held.name] = name, [Held.since_at] = since, [Held.renewal] = holder .. ':' .. text(renewals), [Held.left] = left,
    })
  end
end
if holder ~= caller then
  since, renewals, quiet = now, 0, 0
end
redis.call('HSET', KEYS[1], 'holder', caller, 'name', request[HoldRequest.name], 'since', text(since),
  'ttl', text(wanted), 'expiry', text(now + wanted), 'renewals', text(renewals + 1), 'silent', '0', 'server', server,
  'quiet', text(quiet), 'time', text(now), 'skew', text(skew))
return head(unnumbered(now), 'OK')
