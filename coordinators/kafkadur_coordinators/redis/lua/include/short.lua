--- What the short scripts share: they do the usual alone, and answer SLOW where anything is unusual.
--- @include "common"

--- The unpacked rows, one for each number of fields that a row has at least; nil if one of them is missing or damaged.
local function unpacked(raw, fields)
  local rows = {}
  for i = 1, #fields do
    local read, row = pcall(cmsgpack.unpack, raw[i] or '')
    if not read or type(row) ~= 'table' or #row < fields[i] then
      return nil
    end
    rows[i] = row
  end
  return rows
end

--- Is it the subscription and the server that the caller knows, and does nothing wait to be done first? s: SubscriptionRow;
-- count: fields of the state
local function is_usual(request, s, now, skew, count)
  return redis.pcall('GET', KEYS[2]) == struct.pack(SEAL, s[SubscriptionRow.sequence], count)
    and request[Request.state_version] == STATE_VERSION and s[SubscriptionRow.server] == server_identity()
    and s[SubscriptionRow.id] == request[Request.subscription_id]
    and s[SubscriptionRow.incarnation] == request[Request.incarnation]
    and skew == s[SubscriptionRow.skew] and now >= s[SubscriptionRow.grace] and now < s[SubscriptionRow.next_expiry]
    and s[SubscriptionRow.doubt] == 0
end
