-- The pointer of a namespace: which version is visible, who writes, which servers count.
-- KEYS[1] is the pointer, tg:{<namespace>}:meta. `uuid` is the namespace's. A writer that is fenced has a lower epoch.
--
--   create: uuid, identity -> the identity of the first call, `ready` or nil
--   ready: uuid, servers, [processes] -> 1: every key group has its header, and the namespace exists
--   pointer: uuid, [known_version] -> visible, digest, epoch, writer, horizon, heartbeat_us or nil, servers, now_us;
--     with known_version also `latest`, or nil if known_version is visible
--   claim: uuid, epoch, writer, library -> the highest epoch that was claimed
--   heartbeat: uuid, epoch, [state] -> 1; 0: the epoch is another one. State 'end': the writer was closed
--   list_servers: uuid, epoch, servers, [processes] -> 1: these servers were compared with the log
--   publish: uuid, epoch, version, digest, entry -> 1; 0: nothing changed
--   publish_filled: uuid, epoch, version, digest, entry -> the same, for the version of a fill
--   resume: uuid, epoch, version, digest, horizon, visible, decided_us, entry -> 1; 0: nothing changed
--
-- servers: replication ids with commas. processes: "<id>:<run id>:<bytes received from a primary>" with commas. While run
-- id and bytes stay the same, a process has lost nothing (client/origins.py).

-- Another key of the pointer's namespace.
local function sibling_key(key, name)
  return string.sub(key, 1, -5) .. name
end

local function refuse_other_namespace(key, uuid)
  local fields = redis.call('HMGET', key, 'uuid', 'ready')
  if not fields[1] or not fields[2] then
    return refuse('TGNONE', 'no namespace')
  end
  if fields[1] ~= uuid then
    return refuse('TGOTHER', fields[1])
  end
end

local on_namespace = guard(function(key, args)
  return refuse_other_namespace(key, args[1])
end)

local function number_field(key, field)
  return tonumber(redis.call('HGET', key, field)) or 0
end

-- The first call wins.
writes.create = without_guard(function(key, uuid, identity)
  if redis.call('HSETNX', key, 'uuid', uuid) == 1 then
    redis.call('HSET', key, 'identity', identity)
  end
  return redis.call('HMGET', key, 'identity', 'ready')
end)

writes.ready = without_guard(function(key, uuid, servers, processes)
  if redis.call('HGET', key, 'uuid') ~= uuid then
    return refuse('TGOTHER', uuid)
  end
  if redis.call('HSETNX', key, 'ready', '1') == 1 then
    redis.call('HSET', key, 'visible', '0', 'digest', '', 'epoch', '0', 'writer', '', 'horizon', '0',
      'servers', servers, 'processes', processes or '')
  end
  return 1
end)

-- `latest` is written by every call that moves `visible`.
reads.pointer = without_guard(function(key, uuid, known_version)
  if server_id() == 'replica' then
    return refuse('TGSERVER', 'replica')
  end
  local refusal = refuse_other_namespace(key, uuid)
  if refusal then
    return refusal
  end
  local pointer = redis.call('HMGET', key, 'visible', 'digest', 'epoch', 'writer', 'horizon', 'heartbeat_us', 'servers')
  pointer[8] = decimal(now_us())
  if known_version then
    pointer[9] = known_version ~= pointer[1] and redis.call('HGET', key, 'latest')
  end
  return pointer
end)

writes.claim = on_namespace(function(key, uuid, epoch, writer, library)
  if tonumber(epoch) > number_field(key, 'epoch') then
    redis.call('HSET', key, 'epoch', epoch, 'writer', writer, 'library', library)
  end
  return number_field(key, 'epoch')
end)

writes.heartbeat = on_namespace(function(key, uuid, epoch, state)
  if tonumber(epoch) ~= number_field(key, 'epoch') then
    return 0
  end
  local sign = state == 'end' and '-' or ''
  redis.call('HSET', key, 'heartbeat_us', sign .. decimal(now_us()))
  return 1
end)

writes.list_servers = on_namespace(function(key, uuid, epoch, servers, processes)
  local claimed = number_field(key, 'epoch')
  if claimed > tonumber(epoch) then
    return refuse('TGFENCED', decimal(claimed))
  end
  redis.call('HSET', key, 'servers', servers, 'processes', processes or '')
  return 1
end)

-- The flip. It follows the exact predecessor (I7), or the version at which the store was filled. It never happens under
-- a higher epoch (I6). It never happens on a server that was not compared with the log, which may have lost data.
local function flip(key, epoch, version, digest, entry, is_fill)
  local catalog, stream = sibling_key(key, 'catalog'), sibling_key(key, 'versions')
  local id = server_id()
  local pointer = redis.call('HMGET', key, 'visible', 'epoch', 'servers', 'horizon')
  if not string.find(pointer[3], id, 1, true) then
    return refuse('TGSERVER', id)
  end
  local visible, number, horizon = tonumber(pointer[1]), tonumber(version), tonumber(pointer[4])
  local follows = visible == number - 1 and horizon <= visible
  if is_fill then
    follows = visible == 0 and horizon == number
  end
  if not follows or tonumber(pointer[2]) > tonumber(epoch) then
    return 0
  end
  local content = decimal(now_us()) .. ' ' .. entry
  redis.call('HSET', key, 'visible', version, 'digest', digest, 'epoch', epoch, 'latest', content)
  if is_fill then
    redis.call('HSET', key, 'filled', version)
  end
  redis.call('HSET', catalog, version, content)
  -- Readers wait for new versions at this stream. After a failover it may be ahead of the pointer.
  local added = redis.pcall('XADD', stream, 'MAXLEN', '16', version .. '-0', 'visible', version)
  if type(added) == 'table' and added.err then
    redis.call('UNLINK', stream)
    redis.call('XADD', stream, version .. '-0', 'visible', version)
  end
  return 1
end

writes.publish = on_namespace(function(key, uuid, epoch, version, digest, entry)
  return flip(key, epoch, version, digest, entry, false)
end)

writes.publish_filled = on_namespace(function(key, uuid, epoch, version, digest, entry)
  return flip(key, epoch, version, digest, entry, true)
end)

-- Restores a pointer that a server lost. It was made again with nothing visible, or went back to an older version.
-- After that no server counts as compared with the log.
writes.resume = on_namespace(function(key, uuid, epoch, version, digest, horizon, visible, decided_us, entry)
  local pointer = redis.call('HMGET', key, 'visible', 'horizon', 'epoch')
  local is_filled = tonumber(pointer[2]) > tonumber(pointer[1])
  if pointer[1] ~= visible or tonumber(pointer[1]) >= tonumber(version) or is_filled or pointer[3] ~= epoch then
    return 0
  end
  local content = decided_us .. ' ' .. entry
  redis.call('HSET', key, 'visible', version, 'digest', digest, 'horizon', horizon, 'servers', '', 'processes', '',
    'latest', content)
  redis.call('HSET', sibling_key(key, 'catalog'), version, content)
  return 1
end)
