--- Runs a script. Where a part of its state cannot be read, nothing was written yet. Then the seal is broken, or the id is taken
-- from a state of the version before, so that every call from now on finds no state, and it is rebuilt.
local done, reply = pcall(script)
if done then
  return reply
end
if type(reply) == 'table' and reply.damaged then
  redis.call('SET', KEYS[2], 'broken')
  redis.call('HDEL', KEYS[1], 'id')
  return { 'MISSING', 0, 0, 0 }
end
reply = type(reply) == 'table' and reply.err or reply -- an error of a command begins with its code
return { err = string.find(reply, '^%u+ ') and reply or 'ERR ' .. reply }
