--- Runs a script. If a part of the state cannot be read, the script has written nothing yet. Then the seal is overwritten, and
-- the field id is deleted (for a state of the version before), so that every later call finds no state, and it is rebuilt.
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
