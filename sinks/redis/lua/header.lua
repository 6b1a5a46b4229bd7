-- The header of a key group, and the names of the group's hashes. KEYS[1] is the header, tg:{<namespace>/<group>}:h, a hash:
--   u          the namespace's uuid; while lost rows are restored, followed by "!" and tokens of repairs (rebuild.lua)
--   s          the id of the server where the key group was last compared with the log
--   floor      the versions up to it are merged, and are no longer distinct
--   l:<table>  the sealed versions above the base, newest first: "7,6"
--   b:<table>  the newest version in the base; it exists exactly as long as the base
--   k:<table>  the number and a digest of the base's keys, if they are known to be the keys of one layer
--   k:<table>:<version>  the same of a layer that deletes nothing
--   whole      at the time of writing, everything up to this version was sealed on every server
--   sealed     "<version> <decided, us> <attempt>" of the newest version that was sealed here
--   discarded  "<attempt>,...": attempts that the log lost and an operator gave up; they are never sealed here
--   filling    the version at which the key group is being filled from another store; it is not complete yet
--   lost, lost:<table>, lost_base:<table>   data that was lost and is not restored yet (rebuild.lua)
-- The other hashes of the group map keys to stored values, without metadata:
--   <table>:d:<version>:<uuid>            a layer: the changes of one version. It counts if the header lists it
--   <table>:d:<version>:<uuid>:<attempt>  the same before its seal, which renames it
--   <table>:b                             the base
-- Layers of another uuid are late writes of a dropped namespace, and are ignored.
--
--   make: uuid, [lost] -> the uuid of the header, which is made if there is none; with a third argument its rows were lost,
--     and it is marked until a repair has compared it with the log
--   header: uuid, server -> field and value of each field
--   stamp: uuid, server, version -> 1: everything up to the version is sealed on every server
--   note_moved: uuid, server -> 1: the key group moved to this server, and is complete
--
-- server is the id of the server that the caller expects. "<id>,<origin>" is for a key group that moved there, if the caller
-- has proven that it arrived complete from the server `origin` (docs/decisions/0013).

local REBUILDING = '!'

local function is_rebuilding(owner, uuid)
  return owner and string.sub(owner, 1, #uuid + 1) == uuid .. REBUILDING
end

-- The header's key, and in words the parts of its key group that are not restored.
local function describe_loss(key)
  local fields, parts = read_whole('HGETALL', key), {}
  for index = 1, #fields, 2 do
    local kind, name = string.match(fields[index], '^(lost[_a-z]*):?(.*)$')
    local value = fields[index + 1]
    if kind == 'lost' and name == '' then
      parts[#parts + 1] = value == '0' and 'all of it' or 'versions from ' .. value .. ' on'
    elseif kind == 'lost' then
      parts[#parts + 1] = 'table ' .. name .. ' of version ' .. value
    elseif kind == 'lost_base' then
      parts[#parts + 1] = 'table ' .. name .. ' up to version ' .. value
    end
  end
  table.sort(parts)
  return #parts == 0 and key or key .. ' lost ' .. table.concat(parts, '; ')
end

-- No other hash of a namespace serves as a header: a reader may write some of them.
local function is_header(key)
  return string.sub(key, -2) == ':h'
end

local function refuse_other_owner(key, owner, uuid)
  if not owner or not is_header(key) then
    return refuse('TGLOST', key)
  end
  if is_rebuilding(owner, uuid) then
    return refuse('TGLOST', describe_loss(key))
  end
  if owner ~= uuid then
    return refuse('TGOTHER', owner)
  end
end

-- Removes the origin from the argument `server`, and keeps it as `args.origin`.
local function refuse_other_server(args)
  local id = server_id()
  if id == args[2] then
    return nil
  end
  local expected, origin = string.match(args[2], '^([^,]*),(.*)$')
  if id ~= expected then
    return refuse('TGSERVER', id)
  end
  args[2], args.origin = expected, origin
end

-- A key group that moved here counts after the caller has proven that it arrived complete.
local function refuse_unproven_move(key, compared_at, args)
  if compared_at ~= args[2] and (not compared_at or compared_at ~= args.origin) then
    return refuse('TGLOST', key .. ' moved from ' .. (compared_at or 'nowhere'))
  end
end

local function refuse_header(key, args)
  local header = redis.call('HMGET', key, 'u', 's')
  return refuse_other_owner(key, header[1], args[1]) or refuse_unproven_move(key, header[2], args)
end

-- For functions that restore lost rows. They also accept a healthy key group.
local function refuse_unless_rebuilding(key, args)
  local refusal = refuse_other_server(args)
  local owner = redis.call('HGET', key, 'u')
  if refusal or is_rebuilding(owner, args[1]) then
    return refusal
  end
  return refuse_other_owner(key, owner, args[1])
end

local on_server = guard(function(key, args)
  if not is_header(key) then
    return refuse('TGLOST', key)
  end
  return refuse_other_server(args)
end)

local on_key_group = guard(function(key, args)
  return refuse_other_server(args) or refuse_header(key, args)
end)

local on_rebuilding_key_group = guard(refuse_unless_rebuilding)

local EXISTS_PART = 1000

-- A hash that a header lists exists, or was lost: it was evicted, removed by hand, or missing after a failover. A read
-- that misses a key in one hash searches an older one. That would be wrong if the newer hash was lost.
local function refuse_missing(hashes)
  for first = 1, #hashes, EXISTS_PART do
    local last = math.min(first + EXISTS_PART - 1, #hashes)
    if redis.call('EXISTS', unpack(hashes, first, last)) <= last - first then
      for index = first, last do
        if redis.call('EXISTS', hashes[index]) == 0 then
          return refuse('TGLOST', hashes[index])
        end
      end
    end
  end
end

local function hash_key(header_key, table_name, suffix)
  return string.sub(header_key, 1, -2) .. table_name .. suffix
end

local function base_key(header_key, table_name)
  return hash_key(header_key, table_name, ':b')
end

-- `owner` is the namespace's uuid, before the seal followed by the attempt.
local function layer_key(header_key, table_name, version, owner)
  return hash_key(header_key, table_name, ':d:' .. version .. ':' .. owner)
end

-- The header's field for the keys of a layer, or of the base.
local function key_set_field(table_name, version)
  return 'k:' .. table_name .. (version and ':' .. decimal(version) or '')
end

-- The versions of a list, newest first. A version that is repeated would be read repeatedly, so it is left out.
local function parse_versions(list)
  local versions = {}
  add_work(#(list or ''))
  for digits in string.gmatch(list or '', '%d+') do
    local version = tonumber(digits)
    if #versions == 0 or version < versions[#versions] then
      versions[#versions + 1] = version
    end
  end
  return versions
end

local function format_versions(versions)
  add_work(COMMAND_COST * #versions)
  table.sort(versions, function(one, other) return one > other end)
  for index, version in ipairs(versions) do
    versions[index] = decimal(version)
  end
  return table.concat(versions, ',')
end

local function write_versions(key, field, versions)
  if #versions == 0 then
    return redis.call('HDEL', key, field)
  end
  return redis.call('HSET', key, field, format_versions(versions))
end

local function contains(versions, version)
  for _, each in ipairs(versions) do
    if each == version then
      return true
    end
  end
  return false
end

-- Whether the header listed the layer before it was lost. Such a layer is sealed again, even if its merge had begun.
local function is_lost(key, table_name, version)
  local lost = redis.call('HGET', key, 'lost:' .. table_name)
  return lost and contains(parse_versions(lost), version)
end

-- Removes the layers for which `is_removed` is true, with their rows.
local function remove_layers(key, uuid, table_name, list, is_removed)
  local remaining = {}
  for _, version in ipairs(parse_versions(list)) do
    if is_removed(version) then
      add_work(2 * COMMAND_COST)
      redis.call('UNLINK', layer_key(key, table_name, decimal(version), uuid))
      redis.call('HDEL', key, key_set_field(table_name, version))
    else
      remaining[#remaining + 1] = version
    end
  end
  write_versions(key, 'l:' .. table_name, remaining)
end

-- A snapshot from before the loss is open in some reader: for it, no row that was lost is absent.
writes.make = without_guard(function(key, uuid, lost)
  if redis.call('HSETNX', key, 'u', lost and uuid .. REBUILDING or uuid) == 1 then
    redis.call('HSET', key, 's', server_id())
  end
  return redis.call('HGET', key, 'u')
end)

reads.header = on_rebuilding_key_group(function(key)
  return read_whole('HGETALL', key)
end)

writes.stamp = on_key_group(function(key, uuid, server, version)
  local whole = tonumber(redis.call('HGET', key, 'whole')) or 0
  -- An equal value is written as well: WAIT counts up to the last write of its connection, so it proves nothing for a
  -- call without a write (T32).
  redis.call('HSET', key, 'whole', math.max(tonumber(version), whole))
  return 1
end)

writes.note_moved = on_key_group(function(key, uuid, server)
  redis.call('HSET', key, 's', server)
  return 1
end)
