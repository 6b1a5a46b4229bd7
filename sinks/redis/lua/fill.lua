-- A fill: an empty store takes the rows of one version from another store. KEYS[1] is the pointer for `mark`, otherwise
-- the header.
--   fills  a field of the pointer, "<version> <attempt>,...": the fills whose rows may be here
--
--   mark: uuid, epoch, version, attempt -> the version of the mark, which only rises: no other version becomes visible first;
--     0: a version is visible, or a higher epoch was claimed
--   begin_fill: uuid, server, version -> 1: rows of older versions are removed, and are never read or sealed again;
--     0: the call came late, and changes nothing
--   end_fill: uuid, server, version -> 1: the rows are the base; 0: the fill did not begin here

writes.mark = on_namespace(function(key, uuid, epoch, version, attempt)
  local id = server_id()
  local pointer = redis.call('HMGET', key, 'visible', 'epoch', 'servers', 'horizon', 'fills')
  if not string.find(pointer[3], id, 1, true) then
    return refuse('TGSERVER', id)
  end
  if tonumber(pointer[1]) > 0 or tonumber(pointer[2]) > tonumber(epoch) then
    return 0
  end
  local marked = math.max(tonumber(pointer[4]), tonumber(version))
  local fill, fills = version .. ' ' .. attempt .. ',', pointer[5] or ''
  if not list_contains(',' .. fills, ',' .. fill) then
    fills = fills .. fill
  end
  redis.call('HSET', key, 'horizon', decimal(marked), 'fills', fills)
  return marked
end)

-- A call comes late if its version is at or below the floor, or if a later fill has begun.
writes.begin_fill = on_key_group(function(key, uuid, server, version)
  local number, fields = tonumber(version), read_whole('HGETALL', key)
  local header = redis.call('HMGET', key, 'floor', 'filling')
  local floor, filling = tonumber(header[1]) or 0, tonumber(header[2]) or 0
  if floor >= number or filling >= number then
    return 0
  end
  for index = 1, #fields, 2 do
    local field, value = fields[index], fields[index + 1]
    local kind, table_name = string.match(field, '^([lb]):(.+)$')
    if kind == 'b' and tonumber(value) < number then
      add_work(2 * COMMAND_COST)
      redis.call('UNLINK', base_key(key, table_name))
      redis.call('HDEL', key, field, key_set_field(table_name))
    elseif kind == 'l' then
      remove_layers(key, uuid, table_name, value, function(layer) return layer < number end)
    end
  end
  redis.call('HSET', key, 'floor', decimal(number - 1), 'filling', version)
  return 1
end)

-- All rows are sealed, and their layer becomes the base: every version up to it is merged. A late apply is ignored.
writes.end_fill = on_key_group(function(key, uuid, server, version)
  local number, fields = tonumber(version), read_whole('HGETALL', key)
  local header = redis.call('HMGET', key, 'floor', 'filling')
  if tonumber(header[2]) ~= number then
    return (tonumber(header[1]) or 0) >= number and 1 or 0
  end
  for index = 1, #fields, 2 do
    local field, layers = fields[index], fields[index + 1]
    local table_name = string.match(field, '^l:(.+)$')
    -- If there is a base, a merge has begun. It moves the other rows.
    if table_name and layers == version and not redis.call('HGET', key, 'b:' .. table_name) then
      add_work(4 * COMMAND_COST)
      redis.call('RENAME', layer_key(key, table_name, version, uuid), base_key(key, table_name))
      redis.call('HSET', key, 'b:' .. table_name, version)
      redis.call('HDEL', key, field, key_set_field(table_name), key_set_field(table_name, number))
    end
  end
  redis.call('HSET', key, 'floor', version)
  redis.call('HDEL', key, 'filling')
  return 1
end)
