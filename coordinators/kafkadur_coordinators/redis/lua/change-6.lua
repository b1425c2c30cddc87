--- Begins a change of the definition: create, replace, unsubscribe. No member can attach until it is installed
--- or, past its deadline, resolved by the process that finds it.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, ChangeRequest
-- Reply    Reply
-- Codes    OK; CHANGED: the version is another one; CHANGING (Changing); ACTIVE (Active): members are in the way;
--          DOUBT: what members that are gone committed in Kafka is to be looked up first (rebuild-6); and those of
--          context.lua
--- @include "context"
--- @include "members"

local request = cmsgpack.unpack(ARGV[1])
local ctx, code = open(request)
if code ~= 'OK' and not (code == 'MISSING' and request[ChangeRequest.version] == 0) then
  return head(ctx, code)
end
if ctx.row.changing and ctx.row.changing ~= '' and ctx.row.changing ~= request[ChangeRequest.token] then
  local reply = head(ctx, 'CHANGING')
  reply[Changing.left] = math.max(number(ctx.row.changing_until, 0) - ctx.now, 0)
  return reply
end
if number(ctx.row.version, 0) ~= request[ChangeRequest.version] then
  return head(ctx, 'CHANGED')
end
if code == 'OK' then
  local again = reap(ctx, true)
  local names = {}
  for _, id in ipairs(ctx.ranks) do
    local m = load_member(ctx, id)
    names[#names + 1] = m and m.name
  end
  save_members(ctx)
  send_wakes(ctx)
  if #names > 0 then
    close(ctx)
    local reply = head(ctx, 'ACTIVE')
    reply[Active.names] = names
    reply[Active.again] = again
    return reply
  end
  if ctx.row.doubt == '1' then
    close(ctx)
    return head(ctx, 'DOUBT')
  end
end
redis.call('HSET', KEYS[1], 'changing', request[ChangeRequest.token],
  'changing_until', text(ctx.now + request[ChangeRequest.deadline]),
  'changing_from', text(request[ChangeRequest.version]))
close(ctx)
return head(ctx, 'OK')
