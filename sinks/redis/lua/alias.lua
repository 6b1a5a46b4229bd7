-- An alias: the hash tg:{<alias>}:alias with the fields namespace, uuid and revision. KEYS[1] is the alias.
-- Each change writes a new revision. A change with an old revision comes late, and changes nothing.
--
--   set_alias: known_revision, revision, namespace, uuid -> 1: it is set; 0: it was changed meanwhile
--   drop_alias: known_revision -> 1: it is removed; 0: it was changed meanwhile
--
-- known_revision is the revision that the caller has read, '' for none.

writes.set_alias = without_guard(function(key, known_revision, revision, namespace, uuid)
  local current = redis.call('HGET', key, 'revision') or ''
  if current == known_revision then
    redis.call('HSET', key, 'revision', revision, 'namespace', namespace, 'uuid', uuid)
  end
  return (current == known_revision or current == revision) and 1 or 0
end)

writes.drop_alias = without_guard(function(key, known_revision)
  local current = redis.call('HGET', key, 'revision') or ''
  if current == known_revision then
    redis.call('UNLINK', key)
  end
  return (current == known_revision or redis.call('EXISTS', key) == 0) and 1 or 0
end)
