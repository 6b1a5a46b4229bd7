-- Leases: a lease keeps its version readable. KEYS[1] is the pointer.
--   tg:{<namespace>}:leases  lease id -> "<version> <taken, us> <expires, us>": the leases of readers
--   lease:<lease id>         a field of the pointer: a lease of the writer, whose id begins with "writer-"
-- Leases and the horizon change in one place, so neither can pass the other. A reader has the right to HSET on the hash,
-- and may write anything there without these functions. Any other content is no lease: it keeps no version, and the next
-- `announce` removes it. Readers cannot write to the pointer.
--
--   lease: uuid, lease_id, version, duration_us -> 1. The call also renews a lease of this id
--   release: uuid, lease_id -> the number of leases that were removed
--   leases: uuid, cursor -> now_us; the next cursor ('0' at the end, '-1': more leases than max_leases); the number of
--     entries on this page that ended, and of those that are no leases; then lease_id, version, taken_us, expires_us of each
--     active lease. The first page, with cursor '0', also has the leases of the writer
--   announce: uuid, horizon, max_lease_us, max_layers, keep_versions, max_leases, cursor -> the new horizon; the next cursor,
--     or -1: there were more leases than max_leases, and all were removed; the number of entries on this page that were no
--     leases. -1 for max_lease_us or max_layers means no limit; max_leases '' means the stored one

local WRITER_ID, WRITER_FIELD = '^writer%-', 'lease:'
local LEASES_DEFAULT, LEASES_MAX, LEASE_BYTES_MAX, LEASE_US_MAX, PAGE_COUNT = 4000, 8000, 512, 86400 * 1000000, '250'
-- One of this number of new leases removes a page of expired leases. Without a writer nothing else removes them.
local CLEANUP_INTERVAL = 16

-- The limit of the number of leases. It is an option of the writer, so the pointer may contain any number.
local function leases_limit(first, second)
  return math.min(tonumber(first) or tonumber(second) or LEASES_DEFAULT, LEASES_MAX)
end

local function is_lease_id(id)
  return #id <= 64 and string.find(id, '^[%w_.-]+$') ~= nil
end

-- Nil if the content is not a lease: if `lease` would not have written it.
local function parse_lease(content, visible, now)
  local version, taken, expires = string.match(content, '^(%d+) (%d+) (%d+)$')
  version, taken, expires = tonumber(version), tonumber(taken), tonumber(expires)
  if #content > 64 or not version or version > visible or expires > now + LEASE_US_MAX then
    return nil
  end
  return { version = version, taken = taken, expires = expires }
end

-- The hash of the readers' leases, their number, and whether it may be read. A hash with more or larger entries than
-- `lease` writes is not read: that would block the server for all other clients.
local function reader_leases(key, leases_max)
  local leases = sibling_key(key, 'leases')
  local count = redis.call('HLEN', leases)
  local is_readable = count <= leases_max
  if count > 0 and is_readable then
    is_readable = redis.call('MEMORY', 'USAGE', leases, 'SAMPLES', '0') <= (leases_max + 1) * LEASE_BYTES_MAX
  end
  return leases, count, is_readable
end

-- A page of the readers' leases: the next cursor, the active leases by id, the ids of leases that ended, and the ids of
-- entries that are no leases.
local function page_of_leases(leases, cursor, horizon, visible, now)
  local page = redis.call('HSCAN', leases, cursor, 'COUNT', PAGE_COUNT)
  local entries, active, ended, invalid = page[2], {}, {}, {}
  for index = 1, #entries, 2 do
    local id = entries[index]
    local lease = is_lease_id(id) and not string.find(id, WRITER_ID) and parse_lease(entries[index + 1], visible, now)
    if not lease then
      invalid[#invalid + 1] = id
    elseif lease.expires <= now or lease.version < horizon then
      ended[#ended + 1] = id
    else
      active[id] = lease
    end
  end
  return page[1], active, ended, invalid
end

-- The writer's active leases by id, and the fields of those that ended.
local function writer_leases(key, horizon, visible, now)
  local fields, active, ended = read_whole('HGETALL', key), {}, {}
  for index = 1, #fields, 2 do
    local id = string.match(fields[index], '^' .. WRITER_FIELD .. '(.+)$')
    local lease = id and parse_lease(fields[index + 1], visible, now)
    if lease and lease.expires > now and lease.version >= horizon then
      active[id] = lease
    elseif id then
      ended[#ended + 1] = fields[index]
    end
  end
  return active, ended
end

writes.lease = on_namespace(function(key, uuid, lease_id, version, duration_us)
  local pointer = redis.call('HMGET', key, 'horizon', 'visible', 'max_leases')
  local horizon, visible, leases_max = tonumber(pointer[1]), tonumber(pointer[2]), leases_limit(pointer[3])
  local number, now = tonumber(version), now_us()
  if number < horizon then
    return refuse('TGEXPIRED', decimal(horizon))
  end
  if number > visible then
    return refuse('TGAHEAD', decimal(visible))
  end
  if not is_lease_id(lease_id) or tonumber(duration_us) > LEASE_US_MAX then
    return refuse('TGLEASE', 'no lease')
  end
  local leases, field = sibling_key(key, 'leases'), lease_id
  if string.find(lease_id, WRITER_ID) then
    leases, field = key, WRITER_FIELD .. lease_id
  end
  local existing = redis.call('HGET', leases, field)
  local others = not existing and leases ~= key and redis.call('HLEN', leases) or 0
  if others >= leases_max or (others >= CLEANUP_INTERVAL and now % CLEANUP_INTERVAL == 0) then
    -- Leases expire while no writer runs. Few are one page; of many, a random one is likely to contain some of them. Where
    -- there is room for the lease, the time's lowest digits are 0.
    local _, count, is_readable = reader_leases(key, leases_max)
    local ended, invalid = {}, {}
    if is_readable then
      local cursor = count > tonumber(PAGE_COUNT) and decimal(math.floor(now / CLEANUP_INTERVAL) % 65536) or '0'
      _, _, ended, invalid = page_of_leases(leases, cursor, horizon, visible, now)
    end
    if count < leases_max then
      invalid = {}  -- `announce` removes and counts them
    elseif count - #ended - #invalid >= leases_max then
      return refuse('TGLEASES', decimal(leases_max))
    end
    call_in_parts('HDEL', leases, ended, 1000)
    call_in_parts('HDEL', leases, invalid, 1000)
  end
  local lease = existing and parse_lease(existing, visible, now)
  local taken = lease and lease.version == number and lease.taken or now
  redis.call('HSET', leases, field, decimal(number) .. ' ' .. decimal(taken) .. ' ' .. decimal(now + tonumber(duration_us)))
  return 1
end)

writes.release = on_namespace(function(key, uuid, lease_id)
  if string.find(lease_id, WRITER_ID) then
    return redis.call('HDEL', key, WRITER_FIELD .. lease_id)
  end
  return redis.call('HDEL', sibling_key(key, 'leases'), lease_id)
end)

local function add_leases(reply, leases)
  for id, lease in pairs(leases) do
    reply[#reply + 1], reply[#reply + 2] = id, decimal(lease.version)
    reply[#reply + 1], reply[#reply + 2] = decimal(lease.taken), decimal(lease.expires)
  end
end

reads.leases = on_namespace(function(key, uuid, cursor)
  touch(key, sibling_key(key, 'leases'))
  local pointer, now = redis.call('HMGET', key, 'horizon', 'visible', 'max_leases'), now_us()
  local horizon, visible = tonumber(pointer[1]), tonumber(pointer[2])
  local leases, _, is_readable = reader_leases(key, leases_limit(pointer[3]))
  local next_cursor, active, ended, invalid = '-1', {}, {}, {}
  if is_readable then
    next_cursor, active, ended, invalid = page_of_leases(leases, cursor, horizon, visible, now)
  end
  local reply = { decimal(now), next_cursor, #ended, #invalid }
  add_leases(reply, active)
  if cursor == '0' then
    add_leases(reply, (writer_leases(key, horizon, visible, now)))
  end
  return reply
end)

-- Raises the horizon as far as the leases allow. Readers together keep a version no longer than one lease lasts. That time
-- begins when the version could first have been retired: when the version keep_versions above it became visible.
writes.announce = on_namespace(function(key, uuid, horizon, max_lease_us, max_layers, keep_versions, max_leases, cursor)
  local now, catalog = now_us(), sibling_key(key, 'catalog')
  local pointer = redis.call('HMGET', key, 'visible', 'horizon', 'max_leases')
  local visible, old_horizon = tonumber(pointer[1]), tonumber(pointer[2])
  local lease_us, layers, keep = tonumber(max_lease_us), tonumber(max_layers), tonumber(keep_versions)
  local leases_max = leases_limit(max_leases, pointer[3])
  local leases, count, is_readable = reader_leases(key, leases_max)
  local new_horizon = math.min(tonumber(horizon), visible)
  -- The difference counts in both directions. A time far ahead was written before the clock was set back.
  local function is_recent(since)
    return lease_us < 0 or math.abs(now - since) < lease_us
  end
  local function became_retirable_recently(version)
    local content = lease_us >= 0 and keep > 0 and redis.call('HGET', catalog, decimal(version + keep))
    local published = content and tonumber(string.match(content, '^(%d+) '))
    return not published or is_recent(published)
  end
  local function is_near(lease)
    return layers < 0 or lease.version >= visible - layers
  end
  local of_writer, ended_fields = writer_leases(key, old_horizon, visible, now)
  for _, lease in pairs(of_writer) do
    if lease.version < new_horizon and is_near(lease) then
      new_horizon = lease.version
    end
  end
  for _, content in ipairs(count > 0 and is_readable and read_whole('HVALS', leases) or {}) do
    local version = tonumber(string.match(content, '^(%d+) '))
    if version and version < new_horizon and version >= old_horizon then
      local lease = parse_lease(content, visible, now)
      local is_active = lease and lease.expires > now and is_near(lease) and is_recent(lease.taken)
      if is_active and became_retirable_recently(version) then
        new_horizon = version
      end
    end
  end
  new_horizon = math.max(new_horizon, old_horizon)
  redis.call('HSET', key, 'horizon', decimal(new_horizon), 'max_leases', decimal(leases_max))
  call_in_parts('HDEL', key, ended_fields, 1000)
  if not is_readable then
    redis.call('UNLINK', leases)
    return { new_horizon, '-1', 0 }
  end
  if count == 0 then
    return { new_horizon, '0', 0 }
  end
  local next_cursor, _, ended, invalid = page_of_leases(leases, cursor, new_horizon, visible, now)
  call_in_parts('HDEL', leases, ended, 1000)
  call_in_parts('HDEL', leases, invalid, 1000)
  return { new_horizon, next_cursor, #invalid }
end)
