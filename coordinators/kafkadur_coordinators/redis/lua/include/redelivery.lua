--- Redelivery of offsets that were given back: attempts, back-off, and how many may share a lease.
-- The policy (Policy) belongs to the definition.
-- Marks of an offset: 32768 if it is a suspect (its last holder ended uncleanly, and it may be the reason), plus
-- 2 * counted attempts, plus 1 if it may have been delivered before (redelivered).
local SUSPECT = 32768
local MOST_ATTEMPTS = 16383
local UNPROVEN = 1024 -- suspects that share a lease after one attempt, when attempts have no limit

local function attempts_of(marks)
  return math.floor(marks % SUSPECT / 2)
end

local function is_suspect(marks)
  return marks >= SUSPECT
end

--- The marks of an offset that is given back. how:
--- 0 it was never dispatched.
--- 1 it was dispatched; no attempt is counted.
--- 2 an attempt is counted.
--- 3 its holder crashed with several messages: an attempt is counted, but never the last one, which a message gets in a
---   lease of its own. The offset becomes a crash suspect.
--- 4 as 3, without making it a suspect: a member that holds the whole subscription, or claims stretches of it, takes all
---   of it again at once.
local function returned_marks(ctx, marks, how)
  if how == 0 then
    return marks
  end
  local attempts = attempts_of(marks)
  if how == 1 then
    return attempts * 2 + 1
  end
  local counted = math.min(attempts + 1, MOST_ATTEMPTS)
  if how == 2 then
    return counted * 2 + 1
  end
  if ctx.policy[Policy.most_attempts] > 0 then
    counted = math.min(counted, math.max(ctx.policy[Policy.most_attempts] - 1, attempts))
  end
  return (how == 3 and SUSPECT or 0) + counted * 2 + 1
end

--- How long it waits, ms: twice as long with each attempt, spread over the upper half. Which part of it depends on
--- the place, so that what failed together does not come again together.
local function backoff(ctx, attempts, place)
  local first = ctx.policy[Policy.backoff]
  if first <= 0 or attempts <= 0 then
    return 0
  end
  local wait = math.min(first * 2 ^ math.min(attempts - 1, 40), ctx.policy[Policy.longest_backoff])
  return math.floor(wait / 2 + wait / 2 * (place * 40503 % 65536) / 65536 + 0.5)
end

--- when it is due (0: at once). delay: ms; -1: as the policy says
local function due_after(ctx, marks, place, delay)
  if delay < 0 then
    delay = backoff(ctx, attempts_of(marks), place)
  end
  return delay > 0 and ctx.now + delay or 0
end

--- Is this the last attempt of a suspect? It gets a lease of its own and a holder that has nothing else.
local function is_last_attempt(ctx, marks)
  local most = ctx.policy[Policy.most_attempts]
  return most > 0 and is_suspect(marks) and attempts_of(marks) == most - 1
end

--- How many offsets with these marks may share a lease: of suspects fewer with each attempt, so that the one that
--- ends its holders is found.
local function most_together(ctx, marks)
  local attempts, most = attempts_of(marks), ctx.policy[Policy.most_attempts]
  if not is_suspect(marks) or (most > 0 and attempts >= most) then
    return math.huge
  end
  if most > 0 then
    return 2 ^ math.min(most - 1 - attempts, 10)
  end
  return math.max(math.floor(UNPROVEN / 2 ^ math.min(attempts, 20)), 1)
end
