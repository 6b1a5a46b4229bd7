-- Seals: a seal lists the layers of a version in the header, if all their rows are there. KEYS[1] is the header.
--
--   seal: uuid, server, sealed_version, (table_name, rows, key_digest)... -> empty: the version is sealed; otherwise nothing
--     changed: each table with another number of rows, and that number
--   seal_many: uuid, server, sealed_version, (tables, (table_name, rows, key_digest)...)... -> the reply of `seal` for each
--     key. `tables` is the number of tables of a key. The keys before one that is refused stay sealed
--   seal_again: uuid, server, sealed_version, (table_name, rows, key_digest)... -> the reply of `seal`, while rows are restored
--   discard: uuid, server, version, remembered_max, attempt... -> 1: these attempts are never sealed here; 0: no header
--
-- sealed_version is "<version>:<decided, us>:<attempt>", or a version without an attempt. key_digest may be ''.

-- The version in digits, its attempt or nil, and the note for the header or nil.
local function parse_sealed_version(sealed_version)
  local version, decided_us, attempt = string.match(sealed_version, '^(%d+):(%d+):(.+)$')
  return version or sealed_version, attempt, version and version .. ' ' .. decided_us .. ' ' .. attempt
end

-- Refuses if another attempt of the version was sealed here, or if this one was discarded.
local function refuse_other_attempt(key, version, attempt)
  local header = redis.call('HMGET', key, 'sealed', 'discarded')
  add_work(#(header[1] or ''))
  local sealed, sealed_attempt = string.match(header[1] or '', '^(%d+) %d+ (.+)$')
  if sealed == version and sealed_attempt ~= attempt then
    return refuse('TGATTEMPT', version .. ' ' .. attempt .. ' ' .. sealed_attempt)
  end
  if list_contains(',' .. (header[2] or ''), ',' .. attempt .. ',') then
    return refuse('TGATTEMPT', version .. ' ' .. attempt .. ' ')
  end
end

-- The newest version that was sealed here, 0 for none.
local function newest_sealed(key)
  return tonumber(string.match(redis.call('HGET', key, 'sealed') or '', '^%d+')) or 0
end

-- The header's list of layers with one more version. `versions` are the parsed list, if the version is not the newest.
local function add_version(list, versions, version)
  if versions then
    versions[#versions + 1] = version
    return format_versions(versions)
  end
  add_work(math.ceil(#list / SEARCHED_BYTES_PER_UNIT))
  return decimal(version) .. (list == '' and '' or ',' .. list)
end

-- A layer that was lost is there again.
local function remove_from_lost(key, table_name, version)
  local field, remaining, is_listed = 'lost:' .. table_name, {}, false
  for _, lost in ipairs(parse_versions(redis.call('HGET', key, field))) do
    is_listed = is_listed or lost == version
    if lost ~= version then
      remaining[#remaining + 1] = lost
    end
  end
  if is_listed then
    write_versions(key, field, remaining)
  end
end

-- Seals the tables in `counts` from index `first` to `last`, three items for each. Each table is checked in this order: it
-- is sealed already, and its rows may be moving to the base; it is at or below the floor, and its rows come late; its rows
-- are counted.
local function seal(key, uuid, sealed_version, counts, first, last)
  local version, attempt, note = parse_sealed_version(sealed_version)
  local refusal = attempt and refuse_other_attempt(key, version, attempt)
  if refusal then
    return refusal
  end
  local number, floor = tonumber(version), tonumber(redis.call('HGET', key, 'floor')) or 0
  local wrong, lists, digests = {}, {}, {}
  local owner = attempt and uuid .. ':' .. attempt or uuid
  for index = first, last, 3 do
    local table_name, expected_rows, key_digest = counts[index], counts[index + 1], counts[index + 2]
    local list = redis.call('HGET', key, 'l:' .. table_name) or ''
    local layer, versions = layer_key(key, table_name, version, owner), nil
    if number <= (tonumber(string.match(list, '^%d+')) or 0) then
      versions = parse_versions(list)  -- otherwise it is newer than all of them
    end
    local is_sealed = versions and contains(versions, number)
    if is_sealed or (number <= floor and not is_lost(key, table_name, number)) then
      if attempt or not is_sealed then
        redis.call('UNLINK', layer)  -- it came late
      end
    else
      local rows = redis.call('HLEN', layer)
      if rows ~= tonumber(expected_rows) then
        wrong[#wrong + 1], wrong[#wrong + 2] = table_name, rows
      elseif rows > 0 then
        lists[table_name], digests[table_name] = add_version(list, versions, number), key_digest
      end
    end
  end
  if #wrong == 0 then
    local newest = newest_sealed(key)
    if attempt and number > floor and number >= newest then
      redis.call('HSET', key, 'sealed', note)
    end
    for table_name, list in pairs(lists) do
      local layer = layer_key(key, table_name, version, uuid)
      if attempt then
        redis.call('RENAME', layer_key(key, table_name, version, owner), layer)
      end
      redis.call('HSET', key, 'l:' .. table_name, list)
      remove_from_lost(key, table_name, number)
      if digests[table_name] ~= '' then
        local key_set = decimal(redis.call('HLEN', layer)) .. ' ' .. digests[table_name]
        redis.call('HSET', key, key_set_field(table_name, number), key_set)
      end
    end
  end
  return wrong
end

writes.seal = on_key_group(function(key, uuid, server, sealed_version, ...)
  local counts = { ... }
  return seal(key, uuid, sealed_version, counts, 1, #counts)
end)

-- For key groups on one server, outside a Cluster. Each key has its own check.
writes.seal_many = function(keys, args)
  local uuid, server, sealed_version = unpack(args, 1, 3)
  local refusal = refuse_other_server(args)
  local index, replies = 4, {}
  for position, key in ipairs(keys) do
    refusal = refusal or refuse_header(key, args)
    if refusal then
      return refusal
    end
    local last = index + 3 * tonumber(args[index])
    replies[position], index = seal(key, uuid, sealed_version, args, index + 1, last), last + 1
    if replies[position].err then
      return replies[position]
    end
  end
  return replies
end

writes.seal_again = on_rebuilding_key_group(function(key, uuid, server, sealed_version, ...)
  local counts = { ... }
  return seal(key, uuid, sealed_version, counts, 1, #counts)
end)

-- Every layer from the version on is removed. The horizon is lower, so no reader reads them and no merge has begun to
-- move them. A header that was lost lists nothing.
writes.discard = without_guard(function(key, uuid, server, version, remembered_max, ...)
  local owner = redis.call('HGET', key, 'u')
  local refusal = owner and refuse_unless_rebuilding(key, { uuid, server })
  if refusal or not owner then
    return refusal or 0
  end
  local lowest, is_known = tonumber(version), {}
  local discarded = split(redis.call('HGET', key, 'discarded') or '')
  for _, attempt in ipairs(discarded) do
    is_known[attempt] = true
  end
  for _, attempt in ipairs({ ... }) do
    if not is_known[attempt] then
      discarded[#discarded + 1] = attempt
    end
  end
  redis.call('HSET', key, 'discarded', join_newest(discarded, tonumber(remembered_max)))
  local fields = read_whole('HGETALL', key)
  for index = 1, #fields, 2 do
    local table_name = string.match(fields[index], '^l:(.+)$')
    if table_name then
      remove_layers(key, uuid, table_name, fields[index + 1], function(layer) return layer >= lowest end)
    end
  end
  if newest_sealed(key) >= lowest then
    redis.call('HDEL', key, 'sealed')
  end
  return 1
end)
