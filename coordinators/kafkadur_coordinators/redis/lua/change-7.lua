--- Begins a change of the definition: create, replace, unsubscribe. No member can attach until it is installed
--- or, past its deadline, resolved by the process that finds it.
-- KEYS     see include/context.lua
-- ARGV[1]  Request, ChangeRequest
-- Reply    Reply
-- Codes    OK; CHANGED: the version is another one; CHANGING (Changing); ACTIVE (Active): members are attached;
--          DOUBT: the commits of dead members in Kafka have to be looked up first (rebuild-7); and those of
--          context.lua
--- @include "context"
--- @include "members"
--- @shape ChangeRequest

local request = read_request()
if not request then
  return invalid()
end
local ctx, code = open(request)
if code ~= 'OK' and not (code == 'MISSING' and request[ChangeRequest.version] == 0) then
  return head(ctx, code)
end
local left = changing_left(ctx)
if left and ctx.changing ~= request[ChangeRequest.token] then
  return head(ctx, 'CHANGING', { [Changing.left] = left })
end
if ctx.version ~= request[ChangeRequest.version] then
  return head(ctx, 'CHANGED')
end
if code == 'OK' then
  local names, _, again = others_attached(ctx)
  if #names > 0 then
    return refuse_active(ctx, names, again)
  end
  if ctx.doubt == 1 then
    finish(ctx)
    return head(ctx, 'DOUBT')
  end
end
ctx.changing, ctx.changing_from = request[ChangeRequest.token], request[ChangeRequest.version]
ctx.changing_until = ctx.now + request[ChangeRequest.deadline]
finish(ctx)
return head(ctx, 'OK')
