-- The catalog of a namespace and its schemas, two hashes beside the pointer. KEYS[1] is the pointer.
--   tg:{<namespace>}:catalog  version -> "<published, us> <entry>"
--   tg:{<namespace>}:schemas  schema id -> the schema's JSON
--
--   catalog: uuid, oldest, newest -> the existing entries as stored, ascending, of at most 1,250 versions
--   put_entries: uuid, (version, decided_us, entry)... -> the number of lost entries that were put back
--   forget: uuid, version -> the number of entries that were removed, up to the version and below the horizon
--   leftovers: uuid -> the number of entries below the horizon
--   schemas: uuid, [schema_id...] -> schema_id and schema of each schema, or of each of these that exists
--   put_schemas: uuid, (schema_id, schema)... -> the number of schemas
--   forget_schemas: uuid, version, schema_id... -> 1: removed; 0: another version is visible, or one above it has begun

-- 1,250 entries take some milliseconds. A client continues after the last one. Below 2^52 a number has a successor.
local ENTRIES_MAX, NUMBERS_END = 1250, 2 ^ 52

reads.catalog = on_namespace(function(key, uuid, oldest, newest)
  local first = math.max(tonumber(oldest), number_field(key, 'horizon'), 1)
  -- The limit also ends the loop for a pointer whose `visible` is a number that no writer reaches.
  local last = math.min(tonumber(newest), number_field(key, 'visible'), first + ENTRIES_MAX - 1)
  local catalog, entries = sibling_key(key, 'catalog'), {}
  touch(key, catalog)
  -- From 2^53 on, and for `inf`, the next number equals the number. A loop would not end.
  if not (first < NUMBERS_END) then
    return refuse('TGNUMBER', decimal(first))
  end
  for from = first, last, 1000 do
    local versions = {}
    for version = from, math.min(from + 999, last) do
      versions[#versions + 1] = decimal(version)
    end
    for _, entry in ipairs(redis.call('HMGET', catalog, unpack(versions))) do
      entries[#entries + 1] = entry or nil
    end
  end
  return entries
end)

-- Existing entries, and versions that cannot be read, stay as they are.
writes.put_entries = on_namespace(function(key, uuid, ...)
  local horizon, visible = number_field(key, 'horizon'), number_field(key, 'visible')
  local entries, count = { ... }, 0
  for index = 1, #entries, 3 do
    local version, decided_us, entry = entries[index], entries[index + 1], entries[index + 2]
    if tonumber(version) >= horizon and tonumber(version) <= visible then
      count = count + redis.call('HSETNX', sibling_key(key, 'catalog'), version, decided_us .. ' ' .. entry)
    end
  end
  return count
end)

writes.forget = on_namespace(function(key, uuid, version)
  local last, count = math.min(tonumber(version), number_field(key, 'horizon') - 1), 0
  local catalog = sibling_key(key, 'catalog')
  for _, entry_version in ipairs(read_whole('HKEYS', catalog)) do
    if tonumber(entry_version) <= last then
      add_work(COMMAND_COST)
      count = count + redis.call('HDEL', catalog, entry_version)
    end
  end
  return count
end)

reads.leftovers = on_namespace(function(key, uuid)
  local horizon, catalog, count = number_field(key, 'horizon'), sibling_key(key, 'catalog'), 0
  touch(key, catalog)
  for _, version in ipairs(read_whole('HKEYS', catalog)) do
    count = count + (tonumber(version) < horizon and 1 or 0)
  end
  return count
end)

-- In a slot that moves, the touch comes before the comparison of the namespace.
reads.schemas = without_guard(function(key, uuid, ...)
  local hash, ids = sibling_key(key, 'schemas'), { ... }
  touch(key, hash)
  local refusal = refuse_other_namespace(key, uuid)
  if refusal or #ids == 0 then
    return refusal or read_whole('HGETALL', hash)
  end
  local schemas = {}
  for _, id in ipairs(ids) do
    local schema = redis.call('HGET', hash, id)
    if schema then
      schemas[#schemas + 1], schemas[#schemas + 2] = id, schema
    end
  end
  return schemas
end)

writes.put_schemas = on_namespace(function(key, uuid, ...)
  local schemas = { ... }
  for index = 1, #schemas, 2 do
    redis.call('HSET', sibling_key(key, 'schemas'), schemas[index], schemas[index + 1])
  end
  return #schemas / 2
end)

writes.forget_schemas = on_namespace(function(key, uuid, version, ...)
  local visible = number_field(key, 'visible')
  if visible ~= tonumber(version) then
    return 0
  end
  for _, field in ipairs(read_whole('HKEYS', key)) do
    local begun = string.match(field, '^begun:(%d+)$')
    if begun and tonumber(begun) > visible then
      return 0
    end
  end
  for _, id in ipairs({ ... }) do
    redis.call('HDEL', sibling_key(key, 'schemas'), id)
  end
  return 1
end)
