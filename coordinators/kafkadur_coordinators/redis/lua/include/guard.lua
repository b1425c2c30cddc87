--- Runs a script. Where a part of its state cannot be read, nothing was written yet: the seal is broken, so that every call from
-- now on finds no state, and it is rebuilt as after the loss of a server.
local done, reply = pcall(script)
if done then
  return reply
end
if type(reply) == 'table' and reply.damaged then
  redis.call('SET', KEYS[2], 'broken')
  return { 'MISSING', 0, 0, 0 }
end
reply = type(reply) == 'table' and reply.err or reply -- an error of a command begins with its code
return { err = string.find(reply, '^%u+ ') and reply or 'ERR ' .. reply }
