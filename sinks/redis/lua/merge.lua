-- Merges: the oldest layers of a table move into its base, and rows that no reader needs are removed. KEYS[1] is the header.
--
--   merge: uuid, server, table_name, version, start, rows_max, cursor -> 1: no layer up to the version is left, otherwise 0; the
--     next cursor; the number of rows that were removed; the number of rows that were moved one by one
--   expire: uuid, server, table_name, version, expires, cursor, rows_max, [drop] -> the next cursor; the number of rows on this
--     page of the base; the number of expired rows, which are removed if drop is '1'
--   mergeable: uuid, server, table_name, version, start, expires, layer, cursor, rows_max -> the layer and cursor of the next
--     page, '0' for no next layer; the number of rows that a merge and an expiry of this page would remove
--   sweep: uuid, server, table_name, version, owner, [drop] -> the number of rows of a layer that came late, removed if drop is
--     '1'; 0: it is no such layer
--
-- version is at or below the horizon, and start is the table's start there: the version at which it was last emptied. Both
-- come from the same read of the pointer as the server's id. expires is the time at which the version was decided, as in
-- stored values: 8 bytes, big-endian, signed. layer '0' means the newest. owner is the namespace's uuid, and the attempt.

-- Whether a stored value has expired. One that is too short for an expiry has not: readers report it.
local function is_expired(value, expires)
  local kind = string.sub(value, 1, 1)
  if (kind ~= 'e' and kind ~= 'x') or #value < 9 then
    return false
  end
  for index = 1, 8 do
    local value_byte, expires_byte = string.byte(value, index + 1), string.byte(expires, index)
    if index == 1 then
      value_byte, expires_byte = (value_byte + 128) % 256, (expires_byte + 128) % 256
    end
    if value_byte ~= expires_byte then
      return value_byte < expires_byte
    end
  end
  return true
end

-- A table of arguments is split into parts of this length.
local PART = 4000

-- Moves pairs of key and stored value from a layer to the base. Returns the number of rows that a newer one replaced or
-- deleted, with the delete markers themselves.
local function move(pairs_of, layer, base)
  local row_keys, rows, deleted = {}, pairs_of, {}
  for index = 1, #pairs_of, 2 do
    row_keys[(index + 1) / 2] = pairs_of[index]
    if pairs_of[index + 1] == '-' then
      deleted[#deleted + 1] = pairs_of[index]
    end
  end
  if #deleted > 0 then
    rows = {}
    for index = 1, #pairs_of, 2 do
      if pairs_of[index + 1] ~= '-' then
        rows[#rows + 1], rows[#rows + 2] = pairs_of[index], pairs_of[index + 1]
      end
    end
  end
  local replaced = #rows / 2 - call_in_parts('HSET', base, rows, PART)
  replaced = replaced + #deleted + call_in_parts('HDEL', base, deleted, PART)
  call_in_parts('HDEL', layer, row_keys, PART)
  return replaced
end

-- Makes the layer the base: it has every key of the base, and deletes none. Returns the number of replaced rows.
local function replace(layer, base)
  local replaced = redis.call('HLEN', base)
  redis.call('UNLINK', base)
  redis.call('RENAME', layer, base)
  return replaced
end

-- One step of a merge. The cursor only saves time: a layer is merged when it is empty.
writes.merge = on_key_group(function(key, uuid, server, table_name, version, start, rows_max, cursor)
  local upto, start_number = tonumber(version), tonumber(start)
  local header = redis.call('HMGET', key, 'floor', 'l:' .. table_name, 'b:' .. table_name, key_set_field(table_name))
  local floor, layers, base_version = tonumber(header[1]) or 0, parse_versions(header[2]), tonumber(header[3])
  local base, oldest, removed, moved = base_key(key, table_name), layers[#layers], 0, 0
  local refusal = base_version and base_version >= start_number and refuse_missing({ base })
  if refusal then
    return refusal
  end
  if base_version and base_version < start_number then
    -- The table was emptied after that. No reader at or above the horizon reads this base.
    removed = removed + redis.call('HLEN', base)
    redis.call('UNLINK', base)
    redis.call('HDEL', key, 'b:' .. table_name, key_set_field(table_name))
    floor, base_version = math.max(floor, start_number), nil
    redis.call('HSET', key, 'floor', decimal(floor))
  end
  if not oldest or oldest > upto then
    return { 1, '0', removed, moved }
  end
  local layer, next_cursor = layer_key(key, table_name, decimal(oldest), uuid), '0'
  refusal = oldest >= start_number and refuse_missing({ layer })
  if refusal then
    return refusal
  end
  local key_set = redis.call('HGET', key, key_set_field(table_name, oldest))
  if oldest < start_number then
    removed = removed + redis.call('HLEN', layer)
    redis.call('UNLINK', layer)
    redis.call('HSET', key, 'floor', decimal(math.max(floor, start_number)))
  else
    redis.call('HSET', key, 'floor', decimal(math.max(floor, oldest)), 'b:' .. table_name, decimal(oldest))
    redis.call('HDEL', key, key_set_field(table_name))
    -- Without a base there is nothing to merge with. The layer has no delete markers.
    local is_first = not base_version and (oldest == start_number or key_set)
    if is_first or (base_version and key_set and key_set == header[4]) then
      removed = removed + replace(layer, base)
    else
      if not base_version then
        redis.call('UNLINK', base)  -- no base is listed: this one is of a key group that was lost
      end
      local page = redis.call('HSCAN', layer, cursor, 'COUNT', decimal(capped(MERGE_ROWS_MAX, rows_max)))
      next_cursor, moved = page[1], #page[2] / 2
      removed = removed + move(page[2], layer, base)
    end
  end
  if redis.call('EXISTS', base) == 0 then
    redis.call('HDEL', key, 'b:' .. table_name)  -- all rows were deleted
  end
  if redis.call('EXISTS', layer) == 1 then
    return { 0, next_cursor, removed, moved }
  end
  if key_set then
    redis.call('HDEL', key, key_set_field(table_name, oldest))
    if oldest >= start_number and redis.call('HLEN', base) == tonumber(string.match(key_set, '^%d+')) then
      redis.call('HSET', key, key_set_field(table_name), key_set)  -- the base has all these keys, and no others
    end
  end
  layers[#layers] = nil
  local following = layers[#layers]
  write_versions(key, 'l:' .. table_name, layers)
  return { (following and following <= upto) and 0 or 1, '0', removed, moved }
end)

local function any_has(hashes, row_key)
  for _, hash in ipairs(hashes) do
    add_work(COMMAND_COST)
    if redis.call('HEXISTS', hash, row_key) == 1 then
      return true
    end
  end
  return false
end

-- The next cursor in a hash, and a page of its rows, whose keys are searched in other hashes. HSCAN returns a small hash
-- whole, whatever its COUNT. Then the cursor also has the number of its rows that earlier pages had.
local function page_of(hash, cursor, rows_max, hashes)
  local hash_cursor, earlier = string.match(cursor, '^(%d+):?(%d*)$')
  earlier = tonumber(earlier) or 0
  local count = math.ceil(capped(MERGE_ROWS_MAX, rows_max) / (1 + #hashes / 8))
  local reply = redis.call('HSCAN', hash, hash_cursor or '0', 'COUNT', decimal(count))
  local all, rows = reply[2], {}
  local last = math.min(2 * (earlier + count), #all)
  for index = 2 * earlier + 1, last do
    rows[#rows + 1] = all[index]
  end
  return last < #all and hash_cursor .. ':' .. decimal(last / 2) or reply[1], rows
end

-- No reader at or above the horizon gets these rows. Without drop, rows that a layer up to the version replaces do not
-- count: the merge removes them.
writes.expire = on_key_group(function(key, uuid, server, table_name, version, expires, cursor, rows_max, drop)
  local header = redis.call('HMGET', key, 'floor', 'b:' .. table_name, 'l:' .. table_name)
  if not header[2] then
    return { '0', 0, 0 }
  end
  local base, upto, is_drop = base_key(key, table_name), tonumber(version), drop == '1'
  local refusal = refuse_missing({ base })
  if refusal then
    return refusal
  end
  local layers, newer, expired_keys = parse_versions(header[3]), {}, {}
  for _, layer in ipairs(is_drop and {} or layers) do
    if layer <= upto then
      add_work(COMMAND_COST)
      newer[#newer + 1] = layer_key(key, table_name, decimal(layer), uuid)
    end
  end
  local next_cursor, rows
  if is_drop then
    local reply = redis.call('HSCAN', base, cursor, 'COUNT', decimal(capped(MERGE_ROWS_MAX, rows_max)))
    next_cursor, rows = reply[1], reply[2]
  else
    next_cursor, rows = page_of(base, cursor, rows_max, newer)
  end
  for index = 1, #rows, 2 do
    if is_expired(rows[index + 1], expires) and not any_has(newer, rows[index]) then
      expired_keys[#expired_keys + 1] = rows[index]
    end
  end
  if #expired_keys > 0 and is_drop then
    -- From now on a reader below the horizon is refused. It never reads an expired row as absent.
    redis.call('HSET', key, 'floor', decimal(math.max(tonumber(header[1]) or 0, upto)))
    -- The merge of the oldest layer may have begun. An expired key may be in the base already, and then in neither set.
    local oldest = layers[#layers]
    redis.call('HDEL', key, key_set_field(table_name), key_set_field(table_name, oldest))
    call_in_parts('HDEL', base, expired_keys, PART)
    if redis.call('EXISTS', base) == 0 then
      redis.call('HDEL', key, 'b:' .. table_name)
    end
  end
  return { next_cursor, #rows / 2, #expired_keys }
end)

-- The hashes of the layers above `newest` up to the version, the newest layer from `newest` down, and the layer below it.
local function layers_from(key, table_name, uuid, list, upto, newest)
  local newer, layer = {}, nil
  for _, version in ipairs(parse_versions(list)) do
    if version <= upto and version > newest then
      add_work(COMMAND_COST)
      newer[#newer + 1] = layer_key(key, table_name, decimal(version), uuid)
      touch(key, newer[#newer])
    elseif version <= newest and layer then
      return newer, layer, version
    elseif version <= newest then
      layer = version
    end
  end
  return newer, layer, nil
end

-- A dry run of merge and expiry, without the expiry of rows of the base.
reads.mergeable = on_key_group(function(key, uuid, server, table_name, version, start, expires, layer, cursor, rows_max)
  local upto, start_number, requested = tonumber(version), tonumber(start), tonumber(layer)
  local header = redis.call('HMGET', key, 'l:' .. table_name, 'b:' .. table_name)
  local base_version, base, removed = tonumber(header[2]), base_key(key, table_name), 0
  local is_base_current = base_version and base_version >= start_number
  touch(key, base)
  if requested == 0 and base_version and base_version < start_number then
    removed = redis.call('HLEN', base)
  end
  local newest = requested == 0 and upto or math.min(requested, upto)
  local newer, current, following = layers_from(key, table_name, uuid, header[1], upto, newest)
  if not current then
    return { '0', '0', removed }
  end
  local hash, next_cursor = layer_key(key, table_name, decimal(current), uuid), '0'
  touch(key, hash)
  if current < start_number then
    removed = removed + redis.call('HLEN', hash)
  else
    local hash_cursor = current == requested and cursor or '0'
    local rows
    next_cursor, rows = page_of(hash, hash_cursor, rows_max, newer)
    for index = 1, #rows, 2 do
      local row_key, value = rows[index], rows[index + 1]
      if any_has(newer, row_key) then
        removed = removed + 1
      else
        removed = removed + ((value == '-' or is_expired(value, expires)) and 1 or 0)
        removed = removed + (is_base_current and redis.call('HEXISTS', base, row_key) or 0)
      end
    end
  end
  if next_cursor ~= '0' then
    following = current
  end
  return { following and decimal(following) or '0', next_cursor, removed }
end)

-- A late apply leaves rows at or below the floor, or beside their sealed layer, or of a namespace that was dropped.
writes.sweep = on_key_group(function(key, uuid, server, table_name, version, owner, drop)
  local header = redis.call('HMGET', key, 'floor', 'l:' .. table_name)
  local number = tonumber(version)
  local is_above_floor = number > (tonumber(header[1]) or 0)
  local is_sealed = contains(parse_versions(header[2]), number)
  local is_attempt = string.find(owner, uuid .. ':', 1, true) == 1
  local awaits_seal = is_attempt and is_above_floor and not is_sealed
  if awaits_seal or (owner == uuid and (is_above_floor or is_sealed)) then
    return 0
  end
  local layer = layer_key(key, table_name, version, owner)
  local rows = redis.call('HLEN', layer)
  if drop == '1' then
    redis.call('UNLINK', layer)
  end
  return rows
end)
