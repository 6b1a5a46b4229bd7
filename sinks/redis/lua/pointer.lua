-- The pointer of a namespace, its catalog, schemas and leases.
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

-- uuid, and optionally the version whose entry the caller has: the pointer; then also the catalog's content of the
-- visible version, where it is another one. `latest` is written by every call that moves `visible`.
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
  if args[2] then
    found[9] = args[2] ~= found[1] and redis.call('HGET', keys[1], 'latest')
  end
  return found
end

-- uuid, epoch, writer, the library that the writer uses: the epoch that stands.
writes.claim = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  if tonumber(args[2]) > number_of(keys[1], 'epoch') then
    redis.call('HSET', keys[1], 'epoch', args[2], 'writer', args[3], 'library', args[4])
  end
  return number_of(keys[1], 'epoch')
end

-- uuid, epoch; 'end': the writer is closed.
writes.heartbeat = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  if tonumber(args[2]) ~= number_of(keys[1], 'epoch') then
    return 0
  end
  if args[3] == 'end' then
    redis.call('HSET', keys[1], 'heartbeat_us', '-' .. text(now_us()))
  else
    redis.call('HSET', keys[1], 'heartbeat_us', text(now_us()))
  end
  return 1
end

-- Which attempt of a version may write: begun:<version> -> "<decided, us> <attempt>", noted before the version's
-- first row. discarded -> "<version> <decided, us> <attempt>,...": attempts that the log lost, and a person gave up.

local function is_discarded(discarded, attempt)
  return lists(',' .. (discarded or ''), ' ' .. attempt .. ',')
end

-- uuid, epoch, version, time of the decision, attempt: 1; 0 where the version is visible, and nothing was noted.
writes.begin = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local field, before = 'begun:' .. args[3], 'begun:' .. text(tonumber(args[3]) - 1)
  local found = redis.call('HMGET', keys[1], 'visible', 'epoch', 'writer', 'discarded', field)
  local visible, version = tonumber(found[1]), tonumber(args[3])
  if tonumber(found[2]) > tonumber(args[2]) then
    return refuse('TGFENCED', found[2])
  end
  if version <= visible then
    return 0
  end
  go_through(#(found[5] or ''))
  local noted = found[5] and string.match(found[5], ' (.+)$')
  if (noted and noted ~= args[5]) or is_discarded(found[4], args[5]) then
    return refuse('TGATTEMPT', args[3] .. ' ' .. args[5] .. ' ' .. (noted or ''))
  end
  redis.call('HSET', keys[1], field, args[4] .. ' ' .. args[5])
  if version - 1 <= visible then
    redis.call('HDEL', keys[1], before)  -- versions begin in order: no other is left
  end
  return 1
end

-- uuid: what was discarded, then version and note of what was begun above the visible version, again and again.
reads.begun = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local fields, visible = all_of('HGETALL', keys[1]), number_of(keys[1], 'visible')
  local found = { redis.call('HGET', keys[1], 'discarded') or '' }
  for at = 1, #fields, 2 do
    local version = string.match(fields[at], '^begun:(%d+)$')
    if version and tonumber(version) > visible then
      found[#found + 1], found[#found + 2] = version, fields[at + 1]
    end
  end
  return found
end

-- uuid, epoch, most to remember, then version, time and attempt, again and again: these never begin again. 1.
writes.refuse_attempts = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local found = redis.call('HMGET', keys[1], 'epoch', 'discarded')
  if tonumber(found[1]) > tonumber(args[2]) then
    return refuse('TGFENCED', found[1])
  end
  local all = {}
  go_through(#(found[2] or ''))
  for one in string.gmatch(found[2] or '', '[^,]+') do
    all[#all + 1] = one
  end
  for at = 4, #args, 3 do
    if not is_discarded(found[2], args[at + 2]) then
      all[#all + 1] = args[at] .. ' ' .. args[at + 1] .. ' ' .. args[at + 2]
    end
  end
  local first = math.max(1, #all - tonumber(args[3]) + 1)
  redis.call('HSET', keys[1], 'discarded', table.concat(all, ',', first) .. ',')
  return 1
end

-- uuid, version: the notes from it on go, behind all that was written under them.
writes.forget_begun = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  for _, field in ipairs(all_of('HKEYS', keys[1])) do
    local version = string.match(field, '^begun:(%d+)$')
    if version and tonumber(version) >= tonumber(args[2]) then
      redis.call('HDEL', keys[1], field)
    end
  end
  return 1
end

-- uuid, epoch, version, its attempt: the store is being filled, from now on only this version may become visible first:
-- the version that stands, for the mark only goes up; 0 where something is visible or a higher epoch is claimed.
-- fills -> "<version> <attempt>,...": the fills whose rows may be here.
writes.mark = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local id = server_id()
  local found = redis.call('HMGET', keys[1], 'visible', 'epoch', 'servers', 'horizon', 'fills')
  if not string.find(found[3], id, 1, true) then
    return refuse('TGSERVER', id)
  end
  if tonumber(found[1]) > 0 or tonumber(found[2]) > tonumber(args[2]) then
    return 0
  end
  local stands = math.max(tonumber(found[4]), tonumber(args[3]))
  local fill, fills = args[3] .. ' ' .. args[4] .. ',', found[5] or ''
  if not lists(',' .. fills, ',' .. fill) then
    fills = fills .. fill
  end
  redis.call('HSET', keys[1], 'horizon', text(stands), 'fills', fills)
  return stands
end

-- uuid, epoch, version, digest, catalog entry: the flip. 1, or 0 and nothing changed.
-- Only from the exact predecessor (I7), or to the version that the store was filled at, never under a higher epoch
-- (I6), never on a server that was not compared with the log: it may have lost what is said to be visible.
local function flip(keys, args, filled)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local catalog, stream = beside(keys[1], 'catalog'), beside(keys[1], 'versions')
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
  local content = text(now_us()) .. ' ' .. args[5]
  redis.call('HSET', keys[1], 'visible', args[3], 'digest', args[4], 'epoch', args[2], 'latest', content)
  if filled then
    redis.call('HSET', keys[1], 'filled', args[3])
  end
  redis.call('HSET', catalog, args[3], content)
  -- A reader that waits for a version sleeps on this stream. After a failover it may be ahead of the pointer.
  local added = redis.pcall('XADD', stream, 'MAXLEN', '16', args[3] .. '-0', 'visible', args[3])
  if type(added) == 'table' and added.err then
    redis.call('UNLINK', stream)
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

-- Some milliseconds of the server. A client that gets many entries asks for those above the last one.
local CATALOG_MAX, NUMBERS_END = 1250, 2 ^ 52

-- uuid, oldest, newest: the entries there are, ascending, each "<published, us> <entry>".
reads.catalog = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local first = math.max(tonumber(args[2]), number_of(keys[1], 'horizon'), 1)
  -- A pointer that says more is none of ours: looking for its versions would not end.
  local last = math.min(tonumber(args[3]), number_of(keys[1], 'visible'), first + CATALOG_MAX - 1)
  local catalog, entries = beside(keys[1], 'catalog'), {}
  touch(keys[1], catalog)
  -- From 2^53 on, `inf` among it, the next number is the same one: a loop that counts there would not end.
  if not (first < NUMBERS_END) then
    return refuse('TGNUMBER', text(first))
  end
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

-- uuid, then version, when it was decided, and its entry, again and again: entries that the catalog lost, of versions
-- that can be read. Existing entries stay. Returns the number that was put back.
writes.put_entries = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local horizon, visible, put = number_of(keys[1], 'horizon'), number_of(keys[1], 'visible'), 0
  for at = 2, #args, 3 do
    local version = tonumber(args[at])
    if version >= horizon and version <= visible then
      put = put + redis.call('HSETNX', beside(keys[1], 'catalog'), args[at], args[at + 1] .. ' ' .. args[at + 2])
    end
  end
  return put
end

-- uuid, epoch, version, digest, horizon, visible, when it was decided, its entry: a pointer that was lost, and made
-- again with nothing visible, or that went back to an older visible version, shows this version. No server counts as
-- compared with the log from then on. 1, or 0 and nothing changed.
writes.resume = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local found = redis.call('HMGET', keys[1], 'visible', 'horizon', 'epoch')
  local filled = tonumber(found[2]) > tonumber(found[1])
  if found[1] ~= args[6] or tonumber(found[1]) >= tonumber(args[3]) or filled or found[3] ~= args[2] then
    return 0
  end
  local content = args[7] .. ' ' .. args[8]
  redis.call('HSET', keys[1], 'visible', args[3], 'digest', args[4], 'horizon', args[5], 'servers', '', 'processes', '',
    'latest', content)
  redis.call('HSET', beside(keys[1], 'catalog'), args[3], content)
  return 1
end

-- uuid, version: entries up to it and below the horizon go; how many.
writes.forget = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local last, gone = math.min(tonumber(args[2]), number_of(keys[1], 'horizon') - 1), 0
  local catalog = beside(keys[1], 'catalog')
  for _, version in ipairs(all_of('HKEYS', catalog)) do
    if tonumber(version) <= last then
      go_through(COST)
      gone = gone + redis.call('HDEL', catalog, version)
    end
  end
  return gone
end

-- uuid, version, then schema ids: these go, if the version is the visible one and none above it has begun. 1: they went.
writes.forget_schemas = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local visible = number_of(keys[1], 'visible')
  if visible ~= tonumber(args[2]) then
    return 0
  end
  for _, field in ipairs(all_of('HKEYS', keys[1])) do
    local version = string.match(field, '^begun:(%d+)$')
    if version and tonumber(version) > visible then
      return 0
    end
  end
  for at = 3, #args do
    redis.call('HDEL', beside(keys[1], 'schemas'), args[at])
  end
  return 1
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

-- uuid, then optionally schema ids: id and schema, again and again, of all schemas or of those of the ids.
reads.schemas = function(keys, args)
  local schemas = beside(keys[1], 'schemas')
  touch(keys[1], schemas)
  local refusal = refuse_other(keys[1], args[1])
  if refusal or #args == 1 then
    return refusal or all_of('HGETALL', schemas)
  end
  local found = {}
  for at = 2, #args do
    local schema = redis.call('HGET', schemas, args[at])
    if schema then
      found[#found + 1], found[#found + 2] = args[at], schema
    end
  end
  return found
end

-- Leases: lease id -> "<version> <taken, us> <expires, us>". They and the horizon move in the same place,
-- so that neither can pass the other. Readers may write to that hash past these functions, for no right is narrower
-- than HSET: what is not exactly a lease does not count, and the next announce removes it. The writer's own leases, whose
-- ids begin so, are fields of the pointer, which readers cannot write.

local WRITERS, OF_WRITER = '^writer%-', 'lease:'
local LEASES_MAX, MOST_LEASES, LEASE_BYTES_MAX, LEASE_US_MAX, PAGE = 4000, 8000, 512, 86400 * 1000000, '250'
-- One of this number of new leases removes a page of those that ran out: without a writer nothing else does.
local SWEEP = 16

-- The most leases, as an option of the writer: the pointer may name any number.
local function most_leases(first, second)
  return math.min(tonumber(first) or tonumber(second) or LEASES_MAX, MOST_LEASES)
end

local function is_lease_id(id)
  return #id <= 64 and string.find(id, '^[%w_.-]+$') ~= nil
end

-- Nil where the content cannot be a lease's: what `lease` would never have written.
local function lease_of(content, visible, now)
  local version, taken, expires = string.match(content, '^(%d+) (%d+) (%d+)$')
  version, taken, expires = tonumber(version), tonumber(taken), tonumber(expires)
  if #content > 64 or not version or version > visible or expires > now + LEASE_US_MAX then
    return nil
  end
  return { version = version, taken = taken, expires = expires }
end

-- Where the readers' leases are, unless there are more of them than `lease` lets in, or larger ones: then they are not
-- looked at, for a call that walks them keeps the server from everybody else.
local function leases_at(key, most)
  local leases = beside(key, 'leases')
  local count = redis.call('HLEN', leases)
  local fit = count <= most
  if count > 0 and fit then
    fit = redis.call('MEMORY', 'USAGE', leases, 'SAMPLES', '0') <= (most + 1) * LEASE_BYTES_MAX
  end
  return leases, count, fit
end

-- A page of the readers' leases: the next cursor, those that hold by id, the ids of those that do not any more, and of
-- what is no lease.
local function page_of_leases(leases, cursor, horizon, visible, now)
  local scanned = redis.call('HSCAN', leases, cursor, 'COUNT', PAGE)
  local found, held, over, foreign = scanned[2], {}, {}, {}
  for at = 1, #found, 2 do
    local id = found[at]
    local lease = is_lease_id(id) and not string.find(id, WRITERS) and lease_of(found[at + 1], visible, now)
    if not lease then
      foreign[#foreign + 1] = id
    elseif lease.expires <= now or lease.version < horizon then
      over[#over + 1] = id
    else
      held[id] = lease
    end
  end
  return scanned[1], held, over, foreign
end

local function remove_fields(key, ...)
  for _, fields in ipairs({ ... }) do
    for at = 1, #fields, 1000 do
      redis.call('HDEL', key, unpack(fields, at, math.min(at + 999, #fields)))
    end
  end
end

-- The writer's leases that hold by id, and the fields of those that do not any more.
local function leases_of_writer(key, horizon, visible, now)
  local found, held, over = all_of('HGETALL', key), {}, {}
  for at = 1, #found, 2 do
    local id = string.match(found[at], '^' .. OF_WRITER .. '(.+)$')
    local lease = id and lease_of(found[at + 1], visible, now)
    if lease and lease.expires > now and lease.version >= horizon then
      held[id] = lease
    elseif id then
      over[#over + 1] = found[at]
    end
  end
  return held, over
end

-- uuid, lease id, version, microseconds.
writes.lease = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local stands = redis.call('HMGET', keys[1], 'horizon', 'visible', 'max_leases')
  local horizon, visible, most = tonumber(stands[1]), tonumber(stands[2]), most_leases(stands[3])
  local id, version, now = args[2], tonumber(args[3]), now_us()
  if version < horizon then
    return refuse('TGEXPIRED', text(horizon))
  end
  if version > visible then
    return refuse('TGAHEAD', text(visible))
  end
  if not is_lease_id(id) or tonumber(args[4]) > LEASE_US_MAX then
    return refuse('TGLEASE', 'no lease')
  end
  local leases, field = beside(keys[1], 'leases'), id
  if string.find(id, WRITERS) then
    leases, field = keys[1], OF_WRITER .. id
  end
  local known = redis.call('HGET', leases, field)
  local kept = not known and leases ~= keys[1] and redis.call('HLEN', leases) or 0
  if kept >= most or (kept >= SWEEP and now % SWEEP == 0) then
    -- Those that ran out while no writer was there: some page is likely to have one.
    local _, count, fit = leases_at(keys[1], most)
    local over, foreign = {}, {}
    if fit then
      _, _, over, foreign = page_of_leases(leases, text(now % 65536), horizon, visible, now)
    end
    if count < most then
      foreign = {}  -- announce removes and counts them
    elseif count - #over - #foreign >= most then
      return refuse('TGLEASES', text(most))
    end
    remove_fields(leases, over, foreign)
  end
  local lease = known and lease_of(known, visible, now)
  local taken = lease and lease.version == version and lease.taken or now
  redis.call('HSET', leases, field, text(version) .. ' ' .. text(taken) .. ' ' .. text(now + tonumber(args[4])))
  return 1
end

-- uuid, lease id.
writes.release = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  if string.find(args[2], WRITERS) then
    return redis.call('HDEL', keys[1], OF_WRITER .. args[2])
  end
  return redis.call('HDEL', beside(keys[1], 'leases'), args[2])
end

-- uuid, cursor: the time, the next cursor or -1 for more than may be, how many that do not hold any more and how many
-- that are none are on this page, then of each lease that holds its id, version, time of taking and end.
reads.leases = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  touch(keys[1], beside(keys[1], 'leases'))
  local stands, now = redis.call('HMGET', keys[1], 'horizon', 'visible', 'max_leases'), now_us()
  local horizon, visible = tonumber(stands[1]), tonumber(stands[2])
  local leases, _, fit = leases_at(keys[1], most_leases(stands[3]))
  local cursor, held, over, foreign = '-1', {}, {}, {}
  if fit then
    cursor, held, over, foreign = page_of_leases(leases, args[2], horizon, visible, now)
  end
  local some, found = { held }, { text(now), cursor, #over, #foreign }
  if args[2] == '0' then
    some[2] = leases_of_writer(keys[1], horizon, visible, now)
  end
  for _, of_some in ipairs(some) do
    for id, lease in pairs(of_some) do
      found[#found + 1], found[#found + 2] = id, text(lease.version)
      found[#found + 1], found[#found + 2] = text(lease.taken), text(lease.expires)
    end
  end
  return found
end

-- uuid, horizon, the longest a lease holds in microseconds or -1, versions behind the visible or -1, keep_versions or 0,
-- max_leases or '', cursor: the horizon that stands; the next cursor, or -1: more leases than max_leases were there, and
-- none held; how many entries were no leases and went, on the page of this cursor.
-- Readers together hold a version no longer than one lease, counted from when it could first have been retired: when
-- the version keep_versions above it became visible.
writes.announce = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local now, catalog = now_us(), beside(keys[1], 'catalog')
  local found = redis.call('HMGET', keys[1], 'visible', 'horizon', 'max_leases')
  local visible, stands = tonumber(found[1]), tonumber(found[2])
  local longest, layers, kept = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local most = most_leases(args[6], found[3])
  local leases, count, fit = leases_at(keys[1], most)
  local moved = math.min(tonumber(args[2]), visible)
  -- Both ways from now: a time far ahead is of a clock that went back since.
  local function young(since)
    return longest < 0 or math.abs(now - since) < longest
  end
  local function fresh(version)
    local entry = longest >= 0 and kept > 0 and redis.call('HGET', catalog, text(version + kept))
    local published = entry and tonumber(string.match(entry, '^(%d+) '))
    return not published or young(published)
  end
  local function near(lease)
    return layers < 0 or lease.version >= visible - layers
  end
  local of_writer, gone = leases_of_writer(keys[1], stands, visible, now)
  for _, lease in pairs(of_writer) do
    if lease.version < moved and near(lease) then
      moved = lease.version
    end
  end
  for _, content in ipairs(count > 0 and fit and all_of('HVALS', leases) or {}) do
    local version = tonumber(string.match(content, '^(%d+) '))
    if version and version < moved and version >= stands then
      local lease = lease_of(content, visible, now)
      if lease and lease.expires > now and near(lease) and young(lease.taken) and fresh(version) then
        moved = version
      end
    end
  end
  moved = math.max(moved, stands)
  redis.call('HSET', keys[1], 'horizon', text(moved), 'max_leases', text(most))
  remove_fields(keys[1], gone)
  if not fit then
    redis.call('UNLINK', leases)
    return { moved, '-1', 0 }
  end
  if count == 0 then
    return { moved, '0', 0 }
  end
  local cursor, _, over, foreign = page_of_leases(leases, args[7], moved, visible, now)
  remove_fields(leases, over, foreign)
  return { moved, cursor, #foreign }
end

-- uuid: how many catalog entries lie below the horizon.
reads.leftovers = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  local horizon, catalog, entries = number_of(keys[1], 'horizon'), beside(keys[1], 'catalog'), 0
  touch(keys[1], catalog)
  for _, version in ipairs(all_of('HKEYS', catalog)) do
    entries = entries + (tonumber(version) < horizon and 1 or 0)
  end
  return entries
end

-- uuid, epoch, server ids, processes: the servers that were compared with the log, from now on. A process is
-- "<server id>:<run id>:<bytes from a primary>": while the last two stay, it never lost anything (client/origins.py).
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

-- uuid, then tables: they may have rows from now on. A removal looks for them.
writes.note_tables = function(keys, args)
  local refusal = refuse_other(keys[1], args[1])
  if refusal then
    return refusal
  end
  for at = 2, #args do
    redis.call('HSET', beside(keys[1], 'tables'), args[at], '')
  end
  return #args - 1
end

-- uuid, then field and value, again and again: where the namespace may have keys that no header lists. The identity
-- goes first: what was the pointer is a record of these places from now on, until nothing is left there.
writes.drop = function(keys, args)
  local stands = redis.call('HGET', keys[1], 'uuid')
  if stands ~= args[1] then
    return stands and refuse('TGOTHER', stands) or refuse('TGNONE', 'no namespace')
  end
  local record = beside(keys[1], 'dropped:' .. args[1])
  local noted = all_of('HKEYS', beside(keys[1], 'tables'))
  local places = {}
  for _, name in ipairs(noted) do
    places[#places + 1], places[#places + 2] = 'table:' .. name, ''  -- noted since they were read, perhaps
  end
  redis.call('RENAME', keys[1], record)
  table.remove(args, 1)
  for _, parts in ipairs({ places, args }) do
    for at = 1, #parts, 2000 do
      redis.call('HSET', record, unpack(parts, at, math.min(at + 1999, #parts)))
    end
  end
  redis.call('HSET', beside(keys[1], 'dropped'), stands, '')
  for _, name in ipairs({ 'catalog', 'schemas', 'leases', 'versions', 'tables', 'locality' }) do
    redis.call('UNLINK', beside(keys[1], name))
  end
  return 1
end

-- The field of this key that names its owner, its former value, then keys of the same hash tag: they are removed, unless
-- it has another value now: then a namespace has been made under the name since. 1, or 0 and nothing changed.
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
