-- The pointer of a namespace and what lies beside it: catalog, schemas, leases.
-- KEYS[1] is tg:{<namespace>}:meta. ARGV[1] is the namespace's uuid, but for create.

local function beside(key, name)
  return string.sub(key, 1, -5) .. name
end

local function refuse_other(key, uuid)
  local stands = redis.call('HMGET', key, 'uuid', 'ready')
  if not stands[1] or not stands[2] then
    return refuse('TGNONE', 'no namespace')
  end
  if stands[1] ~= uuid then
    return refuse('TGOTHER', stands[1])
  end
end

local function number_of(key, field)
  return tonumber(redis.call('HGET', key, field)) or 0
end

-- uuid, identity. The first one wins; the identity that stands.
writes.create = function(keys, args)
  if redis.call('HSETNX', keys[1], 'uuid', args[1]) == 1 then
    redis.call('HSET', keys[1], 'identity', args[2])
  end
  return redis.call('HMGET', keys[1], 'identity', 'ready')
end

-- uuid, server ids, processes. Every key group has its header: the namespace may be used.
writes.ready = function(keys, args)
  if redis.call('HGET', keys[1], 'uuid') ~= args[1] then
    return refuse('TGOTHER', args[1])
  end
  if redis.call('HSETNX', keys[1], 'ready', '1') == 1 then
    redis.call('HSET', keys[1], 'visible', '0', 'digest', '', 'epoch', '0', 'writer', '', 'horizon', '0',
      'servers', args[2], 'processes', args[3] or '')
  end
  return 1
end

reads.pointer = function(keys, args)
  if server_id() == 'replica' then
    return refuse('TGSERVER', 'replica')
  end
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local found = redis.call('HMGET', keys[1], 'visible', 'digest', 'epoch', 'writer', 'horizon',
    'heartbeat_us', 'servers')
  found[8] = text(now_us())
  return found
end

-- uuid, epoch, writer: the epoch that stands.
writes.claim = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  if tonumber(args[2]) > number_of(keys[1], 'epoch') then
    redis.call('HSET', keys[1], 'epoch', args[2], 'writer', args[3])
  end
  return number_of(keys[1], 'epoch')
end

-- uuid, epoch.
writes.heartbeat = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  if tonumber(args[2]) ~= number_of(keys[1], 'epoch') then
    return 0
  end
  redis.call('HSET', keys[1], 'heartbeat_us', text(now_us()))
  return 1
end

-- uuid, epoch, version: the store is being filled, from now on only this version may become visible first: the
-- version that stands, for the mark only goes up; 0 where something is visible or a higher epoch is claimed.
writes.mark = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local id = server_id()
  local found = redis.call('HMGET', keys[1], 'visible', 'epoch', 'servers', 'horizon')
  if not string.find(found[3], id, 1, true) then
    return refuse('TGSERVER', id)
  end
  if tonumber(found[1]) > 0 or tonumber(found[2]) > tonumber(args[2]) then
    return 0
  end
  local stands = math.max(tonumber(found[4]), tonumber(args[3]))
  redis.call('HSET', keys[1], 'horizon', text(stands))
  return stands
end

-- uuid, epoch, version, digest, catalog entry: the flip. 1, or 0 and nothing changed.
-- Both keys beside the pointer are touched first: where one of them has left with its slot, that is an error,
-- and what was written before an error stays. Only from the exact predecessor (I7), or to the version that the
-- store was filled at, never under a higher epoch (I6), never on a server that was not
-- compared with the log: it may have lost what is said to be visible.
local function flip(keys, args, filled)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local catalog, stream = beside(keys[1], 'catalog'), beside(keys[1], 'versions')
  redis.call('EXISTS', catalog)
  redis.call('EXISTS', stream)
  local id = server_id()
  local found = redis.call('HMGET', keys[1], 'visible', 'epoch', 'servers', 'horizon')
  if not string.find(found[3], id, 1, true) then
    return refuse('TGSERVER', id)
  end
  local visible, version, horizon = tonumber(found[1]), tonumber(args[3]), tonumber(found[4])
  local follows = visible == version - 1 and horizon <= visible
  if filled then
    follows = visible == 0 and horizon == version
  end
  if not follows or tonumber(found[2]) > tonumber(args[2]) then
    return 0
  end
  redis.call('HSET', keys[1], 'visible', args[3], 'digest', args[4], 'epoch', args[2])
  if filled then
    redis.call('HSET', keys[1], 'filled', args[3])
  end
  redis.call('HSET', catalog, args[3], text(now_us()) .. ' ' .. args[5])
  -- Who waits for a version sleeps on this stream. After a failover it may be ahead of the pointer.
  local added = redis.pcall('XADD', stream, 'MAXLEN', '16', args[3] .. '-0', 'visible', args[3])
  if type(added) == 'table' and added.err then
    redis.call('DEL', stream)
    redis.call('XADD', stream, args[3] .. '-0', 'visible', args[3])
  end
  return 1
end

writes.publish = function(keys, args)
  return flip(keys, args, false)
end

writes.publish_filled = function(keys, args)
  return flip(keys, args, true)
end

-- uuid, oldest, newest: the entries there are, ascending, each "<published, us> <entry>".
reads.catalog = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local first = math.max(tonumber(args[2]), number_of(keys[1], 'horizon'), 1)
  local last = math.min(tonumber(args[3]), number_of(keys[1], 'visible'))
  local catalog, entries = beside(keys[1], 'catalog'), {}
  for from = first, last, 1000 do
    local versions = {}
    for version = from, math.min(from + 999, last) do
      versions[#versions + 1] = text(version)
    end
    for _, entry in ipairs(redis.call('HMGET', catalog, unpack(versions))) do
      entries[#entries + 1] = entry or nil
    end
  end
  return entries
end

-- uuid, version: entries up to it and below the horizon go; how many.
writes.forget = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local last, gone = math.min(tonumber(args[2]), number_of(keys[1], 'horizon') - 1), 0
  local catalog = beside(keys[1], 'catalog')
  for _, version in ipairs(redis.call('HKEYS', catalog)) do
    if tonumber(version) <= last then
      gone = gone + redis.call('HDEL', catalog, version)
    end
  end
  return gone
end

-- uuid: how many catalog entries lie below the horizon, and how many leases ran out.
reads.leftovers = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local horizon, now, entries, leases = number_of(keys[1], 'horizon'), now_us(), 0, 0
  for _, version in ipairs(redis.call('HKEYS', beside(keys[1], 'catalog'))) do
    entries = entries + (tonumber(version) < horizon and 1 or 0)
  end
  for _, lease in ipairs(redis.call('HVALS', beside(keys[1], 'leases'))) do
    leases = leases + (tonumber(string.match(lease, '(%d+)$')) <= now and 1 or 0)
  end
  return { entries, leases }
end

-- uuid, then schema id and schema, again and again.
writes.put_schemas = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  for at = 2, #args, 2 do
    redis.call('HSET', beside(keys[1], 'schemas'), args[at], args[at + 1])
  end
  return (#args - 1) / 2
end

reads.schemas = function(keys, args)
  return refuse_other(keys[1], args[1]) or redis.call('HGETALL', beside(keys[1], 'schemas'))
end

-- Leases: lease id -> "<version> <taken, us> <expires, us>". They and the horizon move in the same place,
-- so that neither can pass the other.

local function lease_of(content)
  local version, taken, expires = string.match(content, '^(%d+) (%-?%d+) (%-?%d+)$')
  return tonumber(version), tonumber(taken), tonumber(expires)
end

-- uuid, lease id, version, microseconds.
writes.lease = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local horizon, version, now = number_of(keys[1], 'horizon'), tonumber(args[3]), now_us()
  if version < horizon then
    return refuse('TGEXPIRED', text(horizon))
  end
  local leases, taken = beside(keys[1], 'leases'), now
  local known = redis.call('HGET', leases, args[2])
  if known then
    local held, first = lease_of(known)
    taken = held == version and first or now
  end
  redis.call('HSET', leases, args[2], args[3] .. ' ' .. text(taken) .. ' ' .. text(now + tonumber(args[4])))
  return 1
end

-- uuid, lease id.
writes.release = function(keys, args)
  return refuse_other(keys[1], args[1]) or redis.call('HDEL', beside(keys[1], 'leases'), args[2])
end

-- uuid: the time, then lease id and lease, again and again.
reads.leases = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local found = redis.call('HGETALL', beside(keys[1], 'leases'))
  table.insert(found, 1, text(now_us()))
  return found
end

-- uuid, horizon, the longest a lease holds in microseconds or -1, versions behind the visible or -1:
-- the horizon that stands.
writes.announce = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local visible, stands, now = number_of(keys[1], 'visible'), number_of(keys[1], 'horizon'), now_us()
  local most, layers = tonumber(args[3]), tonumber(args[4])
  local moved, leases = math.min(tonumber(args[2]), visible), beside(keys[1], 'leases')
  local found = redis.call('HGETALL', leases)
  for at = 1, #found, 2 do
    local version, taken, expires = lease_of(found[at + 1])
    -- Both ways from now: taken far ahead is a clock that went back since.
    local young = most < 0 or math.abs(now - taken) < most
    local near = layers < 0 or version >= visible - layers
    if expires > now and young and near then
      moved = math.min(moved, version)
    end
  end
  moved = math.max(moved, stands)
  redis.call('HSET', keys[1], 'horizon', text(moved))
  for at = 1, #found, 2 do
    local version, _, expires = lease_of(found[at + 1])
    if expires <= now or version < moved then
      redis.call('HDEL', leases, found[at])
    end
  end
  return moved
end

-- uuid, epoch, server ids, processes: the servers that were compared with the log, from now on. A process is
-- "<server id>:<run id>:<bytes from a primary>": while the last two stay, it never lost anything (redis_origins.py).
writes.list_servers = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  if number_of(keys[1], 'epoch') > tonumber(args[2]) then
    return refuse('TGFENCED', text(number_of(keys[1], 'epoch')))
  end
  redis.call('HSET', keys[1], 'servers', args[3], 'processes', args[4] or '')
  return 1
end

-- uuid. The identity goes first; the rest follows.
writes.drop = function(keys, args)
  return refuse_other(keys[1], args[1]) or redis.call('UNLINK', keys[1])
end

-- The field of this key that says whose it is, what stood there, then keys of the same hash tag: they go, unless
-- something else stands there now: then a namespace has been made under the name since. 1, or 0 and nothing changed.
writes.remove = function(keys, args)
  local stands = redis.call('HGET', keys[1], args[1])
  if stands and stands ~= args[2] then
    return 0
  end
  for at = 3, #args do
    redis.call('UNLINK', args[at])
  end
  return 1
end
