-- Removal of a namespace. KEYS[1] is the pointer, or for `remove` any key that names its owner.
--   tg:{<namespace>}:tables          a field for each table that may have rows
--   tg:{<namespace>}:dropped         a field for each uuid whose removal has not ended
--   tg:{<namespace>}:dropped:<uuid>  the removed pointer, and the places where the namespace may have keys
--
--   note_tables: uuid, table_name... -> the number of tables, which may have rows from now on
--   drop: uuid, (field, value)... -> 1. The fields name places that no header lists
--   remove: owner_field, owner, removed_key... -> 1; 0: the key has another owner now, nothing was removed

writes.note_tables = on_namespace(function(key, uuid, ...)
  local names = { ... }
  for _, name in ipairs(names) do
    redis.call('HSET', sibling_key(key, 'tables'), name, '')
  end
  return #names
end)

-- The identity is removed first. The pointer becomes a record of the places, until nothing is left there.
writes.drop = function(keys, args)
  local key, uuid = keys[1], table.remove(args, 1)
  local existing = redis.call('HGET', key, 'uuid')
  if existing ~= uuid then
    return existing and refuse('TGOTHER', existing) or refuse('TGNONE', 'no namespace')
  end
  local record = sibling_key(key, 'dropped:' .. uuid)
  local tables = {}
  for _, name in ipairs(read_whole('HKEYS', sibling_key(key, 'tables'))) do
    tables[#tables + 1], tables[#tables + 2] = 'table:' .. name, ''  -- also those noted since the caller read them
  end
  redis.call('RENAME', key, record)
  call_in_parts('HSET', record, tables, 2000)
  call_in_parts('HSET', record, args, 2000)
  redis.call('HSET', sibling_key(key, 'dropped'), uuid, '')
  for _, name in ipairs({ 'catalog', 'schemas', 'leases', 'versions', 'tables', 'locality' }) do
    redis.call('UNLINK', sibling_key(key, name))
  end
  return 1
end

-- A namespace may have been made under the same name meanwhile. All keys have the same hash tag.
writes.remove = without_guard(function(key, owner_field, owner, ...)
  local existing = redis.call('HGET', key, owner_field)
  if existing and existing ~= owner then
    return 0
  end
  for _, removed_key in ipairs({ ... }) do
    redis.call('UNLINK', removed_key)
  end
  return 1
end)
