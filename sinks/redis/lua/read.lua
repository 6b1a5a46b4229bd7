-- Reads of one key group. KEYS[1] is the header.
--
--   read: uuid, server, table_name, version, start, row_key... -> the stored value of each key or nil, delete
--     markers too. 595 keys at most
--   scan: uuid, server, table_name, version, start, cursor, rows_max, bytes_max -> the server's id; the next cursor; the
--     number of rows of all layers and the base together (with the first cursor, later 0); [row_key, value, row_key, value,
--     ...], delete markers too. 1,000 rows and 1 MiB at most
--   rows: uuid, server, table_name, version, row_key... -> the stored values in the layer of exactly this version
--   look: uuid, server, version, table_name... -> the floor, or 0 if a table lost the version; then for each table 1 if the
--     version is sealed, else 0, and the number of rows of its layer
--
-- start is the version at which the table was last emptied. An older base does not belong to the table any more.

-- The work for a hash that is searched, for each key that is searched in it, and for a layer that is skipped. A writer's
-- list of layers may have any length.
local HASH_COST, KEY_COST, SKIPPED_COST = 30, 3, 8

-- An iterator over the hashes that a read at the version searches, newest first: the layers from `start` to the version,
-- then the base. It returns each hash with its version, '0' for the base. It makes a name when it is needed, since most
-- reads end at one of the first hashes.
local function hashes_at(key, table_name, uuid, layers, base_version, version, start)
  local versions, newer = string.gmatch(layers or '', '%d+'), math.huge
  local prefix, suffix, is_after_layers = hash_key(key, table_name, ':d:'), ':' .. uuid, false
  local cost = HASH_COST + #prefix / NAMED_BYTES_PER_UNIT
  add_work(#(layers or ''))
  return function()
    if is_after_layers then
      return nil
    end
    for digits in versions do
      local layer = tonumber(digits)
      add_work(SKIPPED_COST)
      if layer <= version and layer >= start and layer < newer then
        newer = layer
        add_work(cost)
        return prefix .. digits .. suffix, digits
      end
    end
    is_after_layers = true
    if base_version and tonumber(base_version) >= start then
      return base_key(key, table_name), '0'
    end
  end
end

-- The header's key is checked together with the searched hashes. In a slot that moves, a missing hash is then an error
-- of Redis, and not a loss.
local function read_one(header_key, hashes, row_key)
  local searched, cost = { header_key }, #row_key / NAMED_BYTES_PER_UNIT
  for hash in hashes do
    add_work(cost)
    local value = redis.call('HGET', hash, row_key)
    if value then
      return #searched > 1 and refuse_missing(searched) or { value }
    end
    searched[#searched + 1] = hash
  end
  return #searched > 1 and refuse_missing(searched) or { false }
end

-- Each hash is asked for the keys that no newer hash has.
local function read_many(header_key, hashes, row_keys)
  local values, indexes, missing, searched, bytes = {}, {}, row_keys, { header_key }, 0
  for index, row_key in ipairs(row_keys) do
    values[index], indexes[index], bytes = false, index, bytes + #row_key
  end
  for hash in hashes do
    add_work(KEY_COST * #missing + bytes / NAMED_BYTES_PER_UNIT)
    local replies, next_indexes, next_missing = redis.call('HMGET', hash, unpack(missing)), {}, {}
    for position, value in ipairs(replies) do
      if value then
        values[indexes[position]] = value
        bytes = bytes - #missing[position]
      else
        next_indexes[#next_indexes + 1], next_missing[#next_missing + 1] = indexes[position], missing[position]
      end
    end
    if #next_missing == #missing then
      searched[#searched + 1] = hash  -- a hash that returned a row exists
    end
    indexes, missing = next_indexes, next_missing
    if #missing == 0 then
      break
    end
  end
  return #searched > 1 and refuse_missing(searched) or values
end

-- A snapshot of a version that was visible here before a loss finds no rows while they are filled in again.
local function refuse_filling(key, filling)
  if filling then
    return refuse('TGLOST', key .. ' is being filled at version ' .. filling)
  end
end

-- It has no guard of its own: one HMGET reads the fields for the guard and for the read.
reads.read = function(keys, args)
  local refusal = refuse_other_server(args)
  if refusal then
    return refusal
  end
  local uuid, server, table_name, version, start = unpack(args, 1, 5)
  local key, number = keys[1], tonumber(version)
  local header = redis.call('HMGET', key, 'u', 'floor', 'l:' .. table_name, 'b:' .. table_name, 's', 'filling')
  refusal = refuse_other_owner(key, header[1], uuid) or refuse_unproven_move(key, header[5], args)
    or refuse_filling(key, header[6])
  if refusal then
    return refusal
  end
  if number < (tonumber(header[2]) or 0) then
    return refuse('TGEXPIRED', header[2])
  end
  local hashes = hashes_at(key, table_name, uuid, header[3], header[4], number, tonumber(start))
  if #args == 6 then
    return read_one(key, hashes, args[6])
  end
  return read_many(key, hashes, { unpack(args, 6) })
end

-- A page has about PAGE_BYTES at most, since server and reader keep it in memory. A hash has no order. The size of its
-- first rows shows how many more fit. The third limit is for calls that move or remove the rows of a page.
local PAGE_BYTES, PAGE_ROWS_MAX, MERGE_ROWS_MAX, SAMPLE_ROWS = 1048576, 1000, 256, 8

-- The next cursor in a hash, then key and stored value of about `rows_max` rows, or of fewer large ones. Each part has at
-- most twice the rows read before it. So large rows after small ones are not read all at once.
local function page_of(hash, cursor, rows_max)
  local rows, bytes, count, page = {}, 0, math.min(rows_max, SAMPLE_ROWS), nil
  repeat
    page = redis.call('HSCAN', hash, cursor, 'COUNT', count)
    cursor = page[1]
    for _, part in ipairs(page[2]) do
      rows[#rows + 1] = part
      bytes = bytes + #part
    end
    local read = #rows / 2
    count = read > 0 and math.min(rows_max - read, 2 * read, math.floor((PAGE_BYTES - bytes) * read / bytes)) or 0
  until cursor == '0' or count < 1
  return cursor, rows
end

-- Key and stored value of all rows of these hashes, newest first. Nil if they have more bytes.
local function rows_of(hashes, rows_max, bytes_max)
  local rows, is_known, bytes = {}, {}, 0
  for _, hash in ipairs(hashes) do
    local cursor, page = '0', nil
    repeat
      cursor, page = page_of(hash, cursor, rows_max)
      for index = 1, #page, 2 do
        local row_key, value = page[index], page[index + 1]
        if not is_known[row_key] then
          is_known[row_key] = true
          rows[#rows + 1], rows[#rows + 2] = row_key, value
          bytes = bytes + #row_key + #value
        end
      end
      if bytes > bytes_max then
        return nil
      end
    until cursor == '0'
  end
  return rows
end

-- The first cursor is '0', and the scan ends when the next cursor is '0'. The first reply has all rows, if their number
-- and bytes are within the limits. A reply has fewer rows than asked for if they have more than about 1 MiB together.
-- A cursor is "<layer, or 0 for the base>:<cursor in that hash>". Layers are read from the newest on, the base is last.
-- Rows move only from a layer to the base, so no row is missed. The call that reads the last page of a hash also looks
-- up the next hash. Layers that were merged until then are in the base. So one server must answer the whole scan.
reads.scan = on_key_group(function(key, uuid, server, table_name, version, start, cursor, rows_max, bytes_max)
  local number, start_number = tonumber(version), tonumber(start)
  local rows_limit, bytes_limit = capped(PAGE_ROWS_MAX, rows_max), capped(PAGE_BYTES, bytes_max)
  local header = redis.call('HMGET', key, 'floor', 'l:' .. table_name, 'b:' .. table_name, 'filling')
  local unreadable = refuse_filling(key, header[4])
  if unreadable or number < (tonumber(header[1]) or 0) then
    return unreadable or refuse('TGEXPIRED', header[1])
  end
  local count, layer, hash_cursor = 0, string.match(cursor, '^(%d+):(%d+)$')
  if cursor == '0' then
    local hashes, checked = {}, { key }
    for hash, digits in hashes_at(key, table_name, uuid, header[2], header[3], number, start_number) do
      hashes[#hashes + 1], checked[#checked + 1], layer = hash, hash, layer or digits
      count = count + redis.call('HLEN', hash)
    end
    local refusal = #hashes > 0 and refuse_missing(checked)
    local rows = not refusal and count <= rows_limit and rows_of(hashes, rows_limit, bytes_limit)
    if refusal or rows then
      return refusal or { server, '0', count, rows }
    end
    hash_cursor = '0'
  elseif not layer then
    return refuse('TGCURSOR', 'no cursor of a scan')
  end
  local upto = math.min(tonumber(layer), number)
  local next_hash = hashes_at(key, table_name, uuid, header[2], header[3], upto, start_number)
  local hash, digits = next_hash()
  local refusal = hash and refuse_missing({ key, hash })
  if refusal or not hash then
    return refusal or { server, '0', count, {} }  -- it was merged meanwhile, and all rows were deleted
  end
  local next_cursor, rows = page_of(hash, digits == layer and hash_cursor or '0', rows_limit)
  if next_cursor ~= '0' then
    return { server, digits .. ':' .. next_cursor, count, rows }
  end
  local _, following = next_hash()
  return { server, following and following .. ':0' or '0', count, rows }
end)

reads.rows = on_rebuilding_key_group(function(key, uuid, server, table_name, version, ...)
  local layer = layer_key(key, table_name, version, uuid)
  touch(key, layer)
  return redis.call('HMGET', layer, ...)
end)

reads.look = on_rebuilding_key_group(function(key, uuid, server, version, ...)
  local reply = { tonumber(redis.call('HGET', key, 'floor')) or 0 }
  for _, table_name in ipairs({ ... }) do
    if is_lost(key, table_name, tonumber(version)) then
      reply[1] = 0
    end
    local layers = ',' .. (redis.call('HGET', key, 'l:' .. table_name) or '') .. ','
    local layer = layer_key(key, table_name, version, uuid)
    touch(key, layer)
    reply[#reply + 1] = list_contains(layers, ',' .. version .. ',') and 1 or 0
    reply[#reply + 1] = redis.call('HLEN', layer)
  end
  return reply
end)
