-- An alias: a hash, tg:{<alias>}:alias, with the fields namespace, uuid, and revision, which each change renews.
-- KEYS[1] is the alias. ARGV[1] is the revision that was read before, '' for none: one that comes late changes nothing.

-- revision, the new revision, namespace, uuid. 1: it stands now; 0: it was changed meanwhile.
writes.set_alias = function(keys, args)
  local stands = redis.call('HGET', keys[1], 'revision') or ''
  if stands == args[1] then
    redis.call('HSET', keys[1], 'revision', args[2], 'namespace', args[3], 'uuid', args[4])
  end
  return (stands == args[1] or stands == args[2]) and 1 or 0
end

-- revision. 1: it is gone; 0: it was changed meanwhile.
writes.drop_alias = function(keys, args)
  local stands = redis.call('HGET', keys[1], 'revision') or ''
  if stands == args[1] then
    redis.call('UNLINK', keys[1])
  end
  return (stands == args[1] or redis.call('EXISTS', keys[1]) == 0) and 1 or 0
end
