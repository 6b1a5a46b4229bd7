-- Shared by all functions. Each function takes the keys of one hash tag and is atomic there.
-- Refusals are error replies whose first word says what is proven:
--   TGNONE     there is no namespace here
--   TGOTHER    another namespace (uuid) is here
--   TGLOST     the key group has no header: its server lost its data
--   TGSERVER   this is not the server the caller took it for; its id follows
--   TGEXPIRED  the version was retired; the oldest that can be read follows
--   TGFENCED   a higher epoch is claimed; it follows
--   TGAHEAD    no lease on a version above the visible one; that follows
--   TGLEASES   as many leases as max_leases allows, which follows
--   TGLEASE    an id or a length that no lease has

local reads, writes = {}, {}

local function refuse(code, detail)
  return redis.error_reply(code .. ' ' .. tostring(detail))
end

-- Whole numbers as text: Lua would write large ones as 1.7e+15.
local function text(number)
  return string.format('%.0f', number)
end

-- A server is known by its replication id, which a promoted or restarted one changes.
local function server_id()
  local info = redis.call('INFO', 'replication')
  if not string.find(info, 'role:master', 1, true) then
    return 'replica'
  end
  return string.match(info, 'master_replid:(%x+)')
end

local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
