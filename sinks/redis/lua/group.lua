-- The rows of one key group. KEYS[1] is its header, tg:{<namespace>/<group>}:h, a hash:
--   u          the namespace's uuid; followed by "!" and tokens while lost rows are put back (rebuild.lua)
--   s          the server's id at which it was last compared with the log
--   floor      versions up to it are merged, and no longer distinct
--   l:<table>  the sealed versions above the base, newest first: "7,6"
--   b:<table>  the newest version in the base; there exactly as long as the base is
--   k:<table>  a digest of the base's keys, and their number, where they are known to be one layer's
--   k:<table>:<version>  the same of a layer that deletes nothing
--   whole      up to this version everything was sealed on every server when it was written
--   sealed     "<version> <decided, us> <attempt>" of the newest version that was sealed here
--   discarded  "<attempt>,...": attempts that the log lost, and a person gave up: they are never sealed here
--   filling    the key group is being filled at this version from another store, and is not whole yet
--   lost, lost:<table>, lost_base:<table>   what was lost and is not back yet (rebuild.lua)
-- Its data hashes: <table>:d:<version>:<uuid>, the changes of one version, and <table>:b, the base. Changes come as
-- <table>:d:<version>:<uuid>:<attempt>; the seal gives them the shorter name. A data hash has no metadata.
-- A d: hash that is not listed is never looked at, nor one of another uuid: what a namespace that was
-- dropped sent late.
-- ARGV[1] is the uuid, ARGV[2] the id of the server that the caller means; behind a comma the id of the one where
-- the key group was compared, if it moved here and the caller has found that it is whole (docs/decisions/0013).

local REBUILDING = '!'

local function marked(stands, uuid)
  return stands and string.sub(stands, 1, #uuid + 1) == uuid .. REBUILDING
end

-- The header's key, and in words what of its key group is not back yet.
local function told_lost(key)
  local fields, told = all_of('HGETALL', key), {}
  for at = 1, #fields, 2 do
    local kind, name = string.match(fields[at], '^(lost[_a-z]*):?(.*)$')
    if kind == 'lost' and name == '' then
      told[#told + 1] = fields[at + 1] == '0' and 'all of it' or 'versions from ' .. fields[at + 1] .. ' on'
    elseif kind == 'lost' then
      told[#told + 1] = 'table ' .. name .. ' of version ' .. fields[at + 1]
    elseif kind == 'lost_base' then
      told[#told + 1] = 'table ' .. name .. ' up to version ' .. fields[at + 1]
    end
  end
  table.sort(told)
  return #told == 0 and key or key .. ' lost ' .. table.concat(told, '; ')
end

local function refuse_uuid(key, stands, uuid)
  if not stands then
    return refuse('TGLOST', key)
  end
  if marked(stands, uuid) then
    return refuse('TGLOST', told_lost(key))
  end
  if stands ~= uuid then
    return refuse('TGOTHER', stands)
  end
end

local function refuse_server(args)
  local id = server_id()
  if id == args[2] then
    return nil
  end
  local meant, origin = string.match(args[2], '^([^,]*),(.*)$')
  if id ~= meant then
    return refuse('TGSERVER', id)
  end
  args[2], args.origin = meant, origin
end

-- A key group that moved here counts when somebody has looked where it came from.
local function refuse_unnoted(key, noted, args)
  if noted ~= args[2] and (not noted or noted ~= args.origin) then
    return refuse('TGLOST', key .. ' moved from ' .. (noted or 'nowhere'))
  end
end

local function refuse_strange_header(key, args)
  local header = redis.call('HMGET', key, 'u', 's')
  return refuse_uuid(key, header[1], args[1]) or refuse_unnoted(key, header[2], args)
end

local function refuse_stranger(key, args)
  return refuse_server(args) or refuse_strange_header(key, args)
end

-- For those who put back what was lost.
local function refuse_stranger_but_rebuild(key, args)
  local refusal = refuse_server(args)
  local stands = redis.call('HGET', key, 'u')
  if refusal or marked(stands, args[1]) then
    return refusal
  end
  return refuse_uuid(key, stands, args[1])
end

local EXISTS_AT_ONCE = 1000  -- Lua hands a call some 8,000 arguments at most

-- A hash that a header lists exists, or was lost: evicted, removed by hand, not brought along by a failover. A key that
-- is not found in one source is looked for in an older one, which would be wrong where the newer one was lost.
local function refuse_gone(sources)
  for first = 1, #sources, EXISTS_AT_ONCE do
    local last = math.min(first + EXISTS_AT_ONCE - 1, #sources)
    if redis.call('EXISTS', unpack(sources, first, last)) <= last - first then
      for index = first, last do
        if redis.call('EXISTS', sources[index]) == 0 then
          return refuse('TGLOST', sources[index])
        end
      end
    end
  end
end

local function place(key, name, suffix)
  return string.sub(key, 1, -2) .. name .. suffix
end

local function changes_of(key, name, version, uuid)
  return place(key, name, ':d:' .. version .. ':' .. uuid)
end

-- The field for the keys of a layer, or of the base.
local function keys_field(name, version)
  return 'k:' .. name .. (version and ':' .. text(version) or '')
end

local function layers_of(listed)
  local layers = {}
  go_through(#(listed or ''))
  for version in string.gmatch(listed or '', '%d+') do
    local layer = tonumber(version)
    -- Newest first. One that is there again would be read again, and again.
    if #layers == 0 or layer < layers[#layers] then
      layers[#layers + 1] = layer
    end
  end
  return layers
end

local function list_versions(key, field, versions)
  if #versions == 0 then
    return redis.call('HDEL', key, field)
  end
  go_through(COST * #versions)
  table.sort(versions, function(one, other) return one > other end)
  for at, version in ipairs(versions) do
    versions[at] = text(version)
  end
  return redis.call('HSET', key, field, table.concat(versions, ','))
end

local function list_layers(key, name, layers)
  return list_versions(key, 'l:' .. name, layers)
end

local function has(layers, version)
  for _, one in ipairs(layers) do
    if one == version then
      return true
    end
  end
  return false
end

-- The list with a version that it does not have, which is the newest one as a rule.
local function with_version(listed, layers, version)
  if layers then
    layers[#layers + 1] = version
    go_through(COST * #layers)
    table.sort(layers, function(one, other) return one > other end)
    for at, layer in ipairs(layers) do
      layers[at] = text(layer)
    end
    return table.concat(layers, ',')
  end
  go_through(math.ceil(#listed / FIND_BYTES))
  return text(version) .. (listed == '' and '' or ',' .. listed)
end

local function without(versions, version)
  local left = {}
  for _, one in ipairs(versions) do
    if one ~= version then
      left[#left + 1] = one
    end
  end
  return left
end

-- uuid: returns the uuid of the header, which is made if there is none.
writes.make = function(keys, args)
  if redis.call('HSETNX', keys[1], 'u', args[1]) == 1 then
    redis.call('HSET', keys[1], 's', server_id())
  end
  return redis.call('HGET', keys[1], 'u')
end

-- The cost of a searched hash for `go_through`, which a writer's own list of layers may name without end, of each key
-- that is looked for in it, and of a layer that is passed over.
local SOURCE_COST, KEY_COST, LAYER_COST = 30, 3, 8

-- The hashes that a read at the version searches, the newest first, one at each call: the layers from `start` to the
-- version, then the base if it is of the table's present life; each with its version, 0 for the base. Their names are
-- made when they are asked for: most reads end at the first ones.
local function sources_of(key, name, uuid, listed, based, version, start)
  local layers, newer = string.gmatch(listed or '', '%d+'), math.huge
  local before, behind, ended = place(key, name, ':d:'), ':' .. uuid, false
  return function()
    if ended then
      return nil
    end
    for layer in layers do
      local number = tonumber(layer)
      go_through(LAYER_COST)
      if number <= version and number >= start and number < newer then
        newer = number
        go_through(SOURCE_COST)
        return before .. layer .. behind, layer
      end
    end
    ended = true
    if based and tonumber(based) >= start then
      return place(key, name, ':b'), '0'
    end
  end
end

-- The stored value of one key. The header's key is asked for with what was passed: in a slot that moves, a hash that
-- is not here is an error then, and not a loss.
local function read_one(header, sources, wanted)
  local passed = { header }
  for source in sources do
    local value = redis.call('HGET', source, wanted)
    if value then
      return #passed > 1 and refuse_gone(passed) or { value }
    end
    passed[#passed + 1] = source
  end
  return #passed > 1 and refuse_gone(passed) or { false }
end

-- The stored values of the arguments from the sixth on.
local function read_many(header, sources, args)
  local values, places, wanted, passed = {}, {}, {}, { header }
  for at = 6, #args do
    values[at - 5] = false
    places[at - 5], wanted[at - 5] = at - 5, args[at]
  end
  for source in sources do
    go_through(KEY_COST * #wanted)
    local page, places_left, keys_left = redis.call('HMGET', source, unpack(wanted)), {}, {}
    for at, value in ipairs(page) do
      if value then
        values[places[at]] = value
      else
        places_left[#places_left + 1], keys_left[#keys_left + 1] = places[at], wanted[at]
      end
    end
    if #keys_left == #wanted then
      passed[#passed + 1] = source  -- one of its rows proves of any other that it is here
    end
    places, wanted = places_left, keys_left
    if #wanted == 0 then
      break
    end
  end
  return #passed > 1 and refuse_gone(passed) or values
end

-- uuid, server, table, version, start, key, ...: the stored values, null where there is none.
-- The newest sealed layer at or below the version that has the key; then the base, if it is of the table's
-- present life: not from before `start`, at which it was emptied.
reads.read = function(keys, args)
  local refusal = refuse_server(args)
  if refusal then
    return refusal
  end
  local name, version, start = args[3], tonumber(args[4]), tonumber(args[5])
  local header = redis.call('HMGET', keys[1], 'u', 'floor', 'l:' .. name, 'b:' .. name, 's')
  refusal = refuse_uuid(keys[1], header[1], args[1]) or refuse_unnoted(keys[1], header[5], args)
  if refusal then
    return refusal
  end
  if version < (tonumber(header[2]) or 0) then
    return refuse('TGEXPIRED', header[2])
  end
  local sources = sources_of(keys[1], name, args[1], header[3], header[4], version, start)
  if #args == 6 then
    return read_one(keys[1], sources, args[6])
  end
  return read_many(keys[1], sources, args)
end

-- A page has about this number of bytes at most: the server and the reader hold all of it. The first rows of a hash, which has no
-- order, tell how many more fit.
local PAGE_BYTES, PAGE_ROWS_MAX, SAMPLE_ROWS = 1048576, 1000, 8
-- The same of a call that moves or drops what it looks at.
local MERGE_ROWS_MAX = 256

-- The next cursor in a hash, and key and stored value of about this number of its rows, of fewer if they are large. Each part
-- has at most twice the rows before it, so that some large rows behind small ones are not taken together.
local function page_of(source, cursor, wanted)
  local rows, bytes, more, page = {}, 0, math.min(wanted, SAMPLE_ROWS), nil
  repeat
    page = redis.call('HSCAN', source, cursor, 'COUNT', more)
    cursor = page[1]
    for _, part in ipairs(page[2]) do
      rows[#rows + 1] = part
      bytes = bytes + #part
    end
    local read = #rows / 2
    more = read > 0 and math.min(wanted - read, 2 * read, math.floor((PAGE_BYTES - bytes) * read / bytes)) or 0
  until cursor == '0' or more < 1
  return cursor, rows
end

-- Key and stored value of all rows of these hashes, the newest first, or nil where they have more bytes.
local function rows_of(sources, most_rows, most_bytes)
  local rows, known, bytes = {}, {}, 0
  for _, source in ipairs(sources) do
    local cursor, page = '0', nil
    repeat
      cursor, page = page_of(source, cursor, most_rows)
      for at = 1, #page, 2 do
        if not known[page[at]] then
          known[page[at]] = true
          rows[#rows + 1], rows[#rows + 2] = page[at], page[at + 1]
          bytes = bytes + #page[at] + #page[at + 1]
        end
      end
      if bytes > most_bytes then
        return nil
      end
    until cursor == '0'
  end
  return rows
end

-- uuid, server, table, version, start, cursor, about how many rows, their most bytes: this server's id, the next cursor,
-- the rows of all hashes that the scan reads (at the first cursor, later 0), then key and stored value, again and again.
-- The first cursor is 0, and the scan ends when the next one is. All rows are in the first answer, if they are at most
-- as many and have at most as many bytes. An answer has fewer rows where they have more than about 1 MiB together.
-- A cursor is "<layer, or 0 for the base>:<cursor in that hash>": the layers are read from the newest on, the base last.
-- Here a row only ever moves from a layer to the base, so none is missed. Which hash follows is looked up in the same
-- step as the last page of the one before: what was merged until then is in the base. Hence one server has to answer
-- all of it.
reads.scan = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local name, version, start = args[3], tonumber(args[4]), tonumber(args[5])
  local wanted, most_bytes = at_most(PAGE_ROWS_MAX, args[7]), at_most(PAGE_BYTES, args[8])
  local header = redis.call('HMGET', keys[1], 'floor', 'l:' .. name, 'b:' .. name)
  if version < (tonumber(header[1]) or 0) then
    return refuse('TGEXPIRED', header[1])
  end
  local rows, layer, cursor = 0, string.match(args[6], '^(%d+):(%d+)$')
  if args[6] == '0' then
    local all, existing = {}, { keys[1] }
    for source, number in sources_of(keys[1], name, args[1], header[2], header[3], version, start) do
      all[#all + 1], existing[#existing + 1], layer = source, source, layer or number
      rows = rows + redis.call('HLEN', source)
    end
    refusal = #all > 0 and refuse_gone(existing)
    local few = not refusal and rows <= wanted and rows_of(all, wanted, most_bytes)
    if refusal or few then
      return refusal or { args[2], '0', rows, few }
    end
    cursor = '0'
  elseif not layer then
    return refuse('TGCURSOR', 'no cursor of a scan')
  end
  local following = sources_of(keys[1], name, args[1], header[2], header[3], math.min(tonumber(layer), version), start)
  local source, number = following()
  refusal = source and refuse_gone({ keys[1], source })
  if refusal or not source then
    return refusal or { args[2], '0', rows, {} }  -- merged since, and all of it was deleted
  end
  local next_cursor, page = page_of(source, number == layer and cursor or '0', wanted)
  if next_cursor ~= '0' then
    return { args[2], number .. ':' .. next_cursor, rows, page }
  end
  local _, after = following()
  return { args[2], after and after .. ':0' or '0', rows, page }
end

-- A version as an argument of a seal: "<version>:<decided, us>:<attempt>", or its number alone.
local function sealed_as(told)
  local version, at, attempt = string.match(told, '^(%d+):(%d+):(.+)$')
  return version or told, attempt, version and version .. ' ' .. at .. ' ' .. attempt
end

-- Another attempt of the version was sealed here, or this one was discarded.
local function refuse_other_attempt(key, version, attempt)
  local header = redis.call('HMGET', key, 'sealed', 'discarded')
  go_through(#(header[1] or ''))
  local newest, other = string.match(header[1] or '', '^(%d+) %d+ (.+)$')
  if newest == version and other ~= attempt then
    return refuse('TGATTEMPT', version .. ' ' .. attempt .. ' ' .. other)
  end
  if lists(',' .. (header[2] or ''), ',' .. attempt .. ',') then
    return refuse('TGATTEMPT', version .. ' ' .. attempt .. ' ')
  end
end

-- Whether the layer was listed and lost: it is sealed again, also where its merge was under way.
local function is_lost(key, name, version)
  local lost = redis.call('HGET', key, 'lost:' .. name)
  return lost and has(layers_of(lost), version)
end

local function found_again(key, name, version)
  local lost = layers_of(redis.call('HGET', key, 'lost:' .. name))
  if has(lost, version) then
    list_versions(key, 'lost:' .. name, without(lost, version))
  end
end

-- uuid, server, version, then table, count and a digest of the keys or '', again and again: mark the version as whole.
-- Tables and what belongs to them stand from `first` to `last` of the arguments.
-- Returns each table whose count does not fit, with the count; empty: sealed. In this order: sealed already
-- (its rows may be on the way to the base), under the floor (a late zombie), counted.
local function seal(key, args, first, last)
  local told, attempt, note = sealed_as(args[3])
  local refusal = attempt and refuse_other_attempt(key, told, attempt)
  if refusal then
    return refusal
  end
  local version, floor = tonumber(told), tonumber(redis.call('HGET', key, 'floor')) or 0
  local wrong, sealing, digests = {}, {}, {}
  local brought = attempt and args[1] .. ':' .. attempt or args[1]
  for at = first, last, 3 do
    local name, listed = args[at], redis.call('HGET', key, 'l:' .. args[at]) or ''
    local changes, layers = changes_of(key, name, told, brought), nil
    if version <= (tonumber(string.match(listed, '^%d+')) or 0) then
      layers = layers_of(listed)  -- else it is above all
    end
    local sealed = layers and has(layers, version)
    if sealed or (version <= floor and not is_lost(key, name, version)) then
      if attempt or not sealed then
        redis.call('UNLINK', changes)  -- it came late
      end
    else
      local rows = redis.call('HLEN', changes)
      if rows ~= tonumber(args[at + 1]) then
        wrong[#wrong + 1], wrong[#wrong + 2] = name, rows
      elseif rows > 0 then
        sealing[name], digests[name] = with_version(listed, layers, version), args[at + 2]
      end
    end
  end
  if #wrong == 0 then
    local newest = tonumber(string.match(redis.call('HGET', key, 'sealed') or '', '^%d+')) or 0
    if attempt and version > floor and version >= newest then
      redis.call('HSET', key, 'sealed', note)
    end
    for name, layers in pairs(sealing) do
      local changes = changes_of(key, name, told, args[1])
      if attempt then
        redis.call('RENAME', changes_of(key, name, told, brought), changes)
      end
      redis.call('HSET', key, 'l:' .. name, layers)
      found_again(key, name, version)
      if digests[name] ~= '' then
        redis.call('HSET', key, keys_field(name, version), text(redis.call('HLEN', changes)) .. ' ' .. digests[name])
      end
    end
  end
  return wrong
end

writes.seal = function(keys, args)
  return refuse_stranger(keys[1], args) or seal(keys[1], args, 4, #args)
end

-- Several key groups at once, where no Cluster keeps them apart. uuid, server, version, then for each key how many
-- tables, and the same as for one: for each key what does not fit. Keys before one that refuses stay sealed.
writes.seal_many = function(keys, args)
  local refusal = refuse_server(args)
  local at, found = 4, {}
  for place, key in ipairs(keys) do
    refusal = refusal or refuse_strange_header(key, args)
    if refusal then
      return refusal
    end
    local last = at + 3 * tonumber(args[at])
    found[place], at = seal(key, args, at + 1, last), last + 1
    if found[place].err then
      return found[place]
    end
  end
  return found
end

-- The same, for those who put back what was lost.
writes.seal_again = function(keys, args)
  return refuse_stranger_but_rebuild(keys[1], args) or seal(keys[1], args, 4, #args)
end

-- uuid, server, version, most to remember, then attempts: these are never sealed here from now on, and every layer
-- from the version on goes. No reader sees it, and no merge has begun to move it: the horizon lies below. 1; 0: lost.
writes.discard = function(keys, args)
  local stands = redis.call('HGET', keys[1], 'u')
  local refusal = stands and refuse_stranger_but_rebuild(keys[1], args)
  if refusal or not stands then
    return refusal or 0  -- a header that was lost lists nothing
  end
  local lowest, all, known = tonumber(args[3]), {}, {}
  local discarded = redis.call('HGET', keys[1], 'discarded') or ''
  go_through(#discarded)
  for one in string.gmatch(discarded, '[^,]+') do
    all[#all + 1], known[one] = one, true
  end
  for at = 5, #args do
    if not known[args[at]] then
      all[#all + 1] = args[at]
    end
  end
  local first = math.max(1, #all - tonumber(args[4]) + 1)
  redis.call('HSET', keys[1], 'discarded', table.concat(all, ',', first) .. ',')
  local fields = all_of('HGETALL', keys[1])
  for at = 1, #fields, 2 do
    local name = string.match(fields[at], '^l:(.+)$')
    if name then
      local kept = {}
      for _, layer in ipairs(layers_of(fields[at + 1])) do
        if layer < lowest then
          kept[#kept + 1] = layer
        else
          go_through(2 * COST)
          redis.call('UNLINK', changes_of(keys[1], name, text(layer), args[1]))
          redis.call('HDEL', keys[1], keys_field(name, layer))
        end
      end
      list_layers(keys[1], name, kept)
    end
  end
  local newest = tonumber(string.match(redis.call('HGET', keys[1], 'sealed') or '', '^%d+')) or 0
  if newest >= lowest then
    redis.call('HDEL', keys[1], 'sealed')
  end
  return 1
end

-- uuid, server, version: make room for a fill at this version. Rows of older versions are removed, and never read nor
-- sealed again. One that comes late, at or below the floor or under a later fill, changes nothing.
writes.begin_fill = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local version, fields = tonumber(args[3]), all_of('HGETALL', keys[1])
  local header = redis.call('HMGET', keys[1], 'floor', 'filling')
  local floor, filling = tonumber(header[1]) or 0, tonumber(header[2]) or 0
  if floor >= version or filling >= version then
    return 0
  end
  for at = 1, #fields, 2 do
    local kind, name = string.match(fields[at], '^([lb]):(.+)$')
    if kind == 'b' and tonumber(fields[at + 1]) < version then
      go_through(2 * COST)
      redis.call('UNLINK', place(keys[1], name, ':b'))
      redis.call('HDEL', keys[1], fields[at], keys_field(name))
    elseif kind == 'l' then
      local kept = {}
      for _, layer in ipairs(layers_of(fields[at + 1])) do
        if layer < version then
          go_through(2 * COST)
          redis.call('UNLINK', changes_of(keys[1], name, text(layer), args[1]))
          redis.call('HDEL', keys[1], keys_field(name, layer))
        else
          kept[#kept + 1] = layer
        end
      end
      list_layers(keys[1], name, kept)
    end
  end
  redis.call('HSET', keys[1], 'floor', text(version - 1), 'filling', args[3])
  return 1
end

-- uuid, server, version: all is filled and sealed, and becomes the base: every version up to it, merged. So what
-- is applied late at this version is not looked at. 1; 0: the fill was not begun here.
writes.end_fill = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local version, fields = tonumber(args[3]), all_of('HGETALL', keys[1])
  local header = redis.call('HMGET', keys[1], 'floor', 'filling')
  if tonumber(header[2]) ~= version then
    return (tonumber(header[1]) or 0) >= version and 1 or 0
  end
  for at = 1, #fields, 2 do
    local name = string.match(fields[at], '^l:(.+)$')
    -- Where there is a base, a merge is under way: it brings the rest there.
    if name and fields[at + 1] == args[3] and redis.call('HEXISTS', keys[1], 'b:' .. name) == 0 then
      go_through(4 * COST)
      redis.call('RENAME', changes_of(keys[1], name, args[3], args[1]), place(keys[1], name, ':b'))
      redis.call('HSET', keys[1], 'b:' .. name, args[3])
      redis.call('HDEL', keys[1], fields[at], keys_field(name), keys_field(name, version))
    end
  end
  redis.call('HSET', keys[1], 'floor', args[3])
  redis.call('HDEL', keys[1], 'filling')
  return 1
end

-- Whether a stored value has expired at a time, in the form of values: 8 bytes, big-endian, signed.
-- A value that is too short for an expiry has not expired: readers report it, and retirement continues.
local function expired(value, at)
  local kind = string.sub(value, 1, 1)
  if (kind ~= 'e' and kind ~= 'x') or #value < 9 then
    return false
  end
  for place = 1, 8 do
    local ours, theirs = string.byte(value, place + 1), string.byte(at, place)
    if place == 1 then
      ours, theirs = (ours + 128) % 256, (theirs + 128) % 256
    end
    if ours ~= theirs then
      return ours < theirs
    end
  end
  return true
end

-- Pairs of key and stored value, from a layer to the base; then the number of rows that were passed.
local function move(pairs_of, changes, base)
  local keys, rows, deleted, gone = {}, pairs_of, {}, 0
  for at = 1, #pairs_of, 2 do
    keys[(at + 1) / 2] = pairs_of[at]
    if pairs_of[at + 1] == '-' then
      deleted[#deleted + 1] = pairs_of[at]
    end
  end
  if #deleted > 0 then
    rows = {}
    for at = 1, #pairs_of, 2 do
      if pairs_of[at + 1] ~= '-' then
        rows[#rows + 1], rows[#rows + 2] = pairs_of[at], pairs_of[at + 1]
      end
    end
  end
  for at = 1, #rows, 4000 do
    local last = math.min(at + 3999, #rows)
    gone = gone + (last - at + 1) / 2 - redis.call('HSET', base, unpack(rows, at, last))
  end
  for at = 1, #deleted, 4000 do
    local last = math.min(at + 3999, #deleted)
    gone = gone + (last - at + 1) + redis.call('HDEL', base, unpack(deleted, at, last))
  end
  for at = 1, #keys, 4000 do
    redis.call('HDEL', changes, unpack(keys, at, math.min(at + 3999, #keys)))
  end
  return gone
end

-- The layer becomes the base as it is: it has every key that the base has, and deletes none. How many rows went.
local function replace(changes, base)
  local gone = redis.call('HLEN', base)
  redis.call('UNLINK', base)
  redis.call('RENAME', changes, base)
  return gone
end

-- uuid, server, table, version, start, about how many rows, cursor: move the oldest layer up to the version
-- into the base, a step at a time: 1 when no such layer is left (else 0), the cursor for the next step, how many
-- rows went, and how many were moved one by one. `version` is at or below the horizon, `start` the table's start there; both come from
-- the same read of the pointer as the server's id. The cursor only saves time: a layer is done when it is empty.
writes.merge = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local name, upto, start = args[3], tonumber(args[4]), tonumber(args[5])
  local header = redis.call('HMGET', keys[1], 'floor', 'l:' .. name, 'b:' .. name, keys_field(name))
  local floor, layers, based = tonumber(header[1]) or 0, layers_of(header[2]), tonumber(header[3])
  local base, oldest, gone, moved = place(keys[1], name, ':b'), layers[#layers], 0, 0
  refusal = based and based >= start and refuse_gone({ base })
  if refusal then
    return refusal
  end
  if based and based < start then
    -- Emptied since: no reader at or above the horizon looks there.
    gone = gone + redis.call('HLEN', base)
    redis.call('UNLINK', base)
    redis.call('HDEL', keys[1], 'b:' .. name, keys_field(name))
    redis.call('HSET', keys[1], 'floor', text(math.max(floor, start)))
    floor, based = math.max(floor, start), nil
  end
  if not oldest or oldest > upto then
    return { 1, '0', gone, moved }
  end
  local changes, cursor = changes_of(keys[1], name, text(oldest), args[1]), '0'
  refusal = oldest >= start and refuse_gone({ changes })
  if refusal then
    return refusal
  end
  local its_keys = redis.call('HGET', keys[1], keys_field(name, oldest))
  if oldest < start then
    gone = gone + redis.call('HLEN', changes)
    redis.call('UNLINK', changes)
    redis.call('HSET', keys[1], 'floor', text(math.max(floor, start)))
  else
    redis.call('HSET', keys[1], 'floor', text(math.max(floor, oldest)), 'b:' .. name, text(oldest))
    redis.call('HDEL', keys[1], keys_field(name))
    local first = not based and (oldest == start or its_keys)  -- no delete markers, and nothing to move them onto
    if first or (based and its_keys and its_keys == header[4]) then
      gone = gone + replace(changes, base)
    else
      if not based then
        redis.call('UNLINK', base)  -- none is listed: what is there is of a key group that was lost
      end
      local page = redis.call('HSCAN', changes, args[7], 'COUNT', text(at_most(MERGE_ROWS_MAX, args[6])))
      cursor, moved = page[1], #page[2] / 2
      gone = gone + move(page[2], changes, base)
    end
  end
  if redis.call('EXISTS', base) == 0 then
    redis.call('HDEL', keys[1], 'b:' .. name)  -- all of it was deleted
  end
  if redis.call('EXISTS', changes) == 1 then
    return { 0, cursor, gone, moved }
  end
  if its_keys then
    redis.call('HDEL', keys[1], keys_field(name, oldest))
    if oldest >= start and redis.call('HLEN', base) == tonumber(string.match(its_keys, '^%d+')) then
      redis.call('HSET', keys[1], keys_field(name), its_keys)  -- all its keys are there, and no others
    end
  end
  layers[#layers] = nil
  local left = layers[#layers]
  list_layers(keys[1], name, layers)
  return { (left and left <= upto) and 0 or 1, '0', gone, moved }
end

-- Whether one of these hashes has the key.
local function one_has(hashes, wanted)
  for _, hash in ipairs(hashes) do
    go_through(COST)
    if redis.call('HEXISTS', hash, wanted) == 1 then
      return true
    end
  end
  return false
end

-- The next cursor in a hash and some of its rows, each of which is looked for in this number of hashes. HSCAN gives a small hash
-- whole, with any COUNT: then the cursor has the number of the rows that were looked at, too.
local function rows_to_look_for(hash, cursor, asked, hashes)
  local from, passed = string.match(cursor, '^(%d+):?(%d*)$')
  passed = tonumber(passed) or 0
  local most = math.ceil(at_most(MERGE_ROWS_MAX, asked) / (1 + hashes / 8))
  local page = redis.call('HSCAN', hash, from or '0', 'COUNT', text(most))
  local all, rows = page[2], {}
  local last = math.min(2 * (passed + most), #all)
  for at = 2 * passed + 1, last do
    rows[#rows + 1] = all[at]
  end
  return last < #all and from .. ':' .. text(last / 2) or page[1], rows
end

-- uuid, server, table, version, time, cursor, about how many rows, 1 to drop: of some rows of the base those that
-- have expired at the time, which is when the version was decided, which is at or below the horizon: no reader at or
-- above it gets them. The next cursor, how many rows there were, how many of them went, or would go: those that a
-- layer up to the version replaces are left out then.
writes.expire = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local header = redis.call('HMGET', keys[1], 'floor', 'b:' .. args[3], 'l:' .. args[3])
  if not header[2] then
    return { '0', 0, 0 }
  end
  local base, upto, found = place(keys[1], args[3], ':b'), tonumber(args[4]), {}
  refusal = refuse_gone({ base })
  if refusal then
    return refusal
  end
  local layers, merged = layers_of(header[3]), {}
  for _, layer in ipairs(args[8] ~= '1' and layers or {}) do
    if layer <= upto then
      go_through(COST)
      merged[#merged + 1] = changes_of(keys[1], args[3], text(layer), args[1])
    end
  end
  local cursor, rows
  if args[8] == '1' then
    local page = redis.call('HSCAN', base, args[6], 'COUNT', text(at_most(MERGE_ROWS_MAX, args[7])))
    cursor, rows = page[1], page[2]
  else
    cursor, rows = rows_to_look_for(base, args[6], args[7], #merged)
  end
  for at = 1, #rows, 2 do
    if expired(rows[at + 1], args[5]) and not one_has(merged, rows[at]) then
      found[#found + 1] = rows[at]
    end
  end
  if #found > 0 and args[8] == '1' then
    -- A reader below the horizon is refused from now on, and never gets the answer that there is no row.
    redis.call('HSET', keys[1], 'floor', text(math.max(tonumber(header[1]) or 0, upto)))
    -- Of a layer whose merge is under way the keys that went may be in the base already, and are not in both then.
    local oldest = layers[#layers]
    redis.call('HDEL', keys[1], keys_field(args[3]), keys_field(args[3], oldest))
    for at = 1, #found, 4000 do
      redis.call('HDEL', base, unpack(found, at, math.min(at + 3999, #found)))
    end
    if redis.call('EXISTS', base) == 0 then
      redis.call('HDEL', keys[1], 'b:' .. args[3])
    end
  end
  return { cursor, #rows / 2, #found }
end

-- The newest layer from `wanted` down, the one below it, and the hashes of those above it up to the version.
local function layer_below(key, name, uuid, listed, upto, wanted)
  local newer, layer = {}, nil
  for _, version in ipairs(layers_of(listed)) do
    if version <= upto and version > wanted then
      go_through(COST)
      newer[#newer + 1] = changes_of(key, name, text(version), uuid)
      touch(key, newer[#newer])
    elseif version <= wanted and layer then
      return newer, layer, version
    elseif version <= wanted then
      layer = version
    end
  end
  return newer, layer, nil
end

-- uuid, server, table, version, start, time, layer or 0 for the newest, cursor, about how many rows: of some rows of
-- one layer up to the version, how many merging would drop, and dropping what has expired at the time after it, but
-- for rows of the base. The layer and the cursor of the next step, 0 for the layer when there is none, and the rows.
reads.mergeable = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local name, upto, start, asked = args[3], tonumber(args[4]), tonumber(args[5]), tonumber(args[7])
  local header = redis.call('HMGET', keys[1], 'l:' .. name, 'b:' .. name)
  local based, base, gone = tonumber(header[2]), place(keys[1], name, ':b'), 0
  local hidden = based and based >= start
  touch(keys[1], base)
  if asked == 0 and based and based < start then
    gone = redis.call('HLEN', base)
  end
  local wanted = asked == 0 and upto or math.min(asked, upto)
  local newer, layer, following = layer_below(keys[1], name, args[1], header[1], upto, wanted)
  if not layer then
    return { '0', '0', gone }
  end
  local changes, cursor = changes_of(keys[1], name, text(layer), args[1]), '0'
  touch(keys[1], changes)
  if layer < start then
    gone = gone + redis.call('HLEN', changes)
  else
    local rows
    cursor, rows = rows_to_look_for(changes, layer == asked and args[8] or '0', args[9], #newer)
    for at = 1, #rows, 2 do
      local key, value = rows[at], rows[at + 1]
      if one_has(newer, key) then
        gone = gone + 1
      else
        gone = gone + ((value == '-' or expired(value, args[6])) and 1 or 0)
        gone = gone + (hidden and redis.call('HEXISTS', base, key) or 0)
      end
    end
  end
  if cursor ~= '0' then
    following = layer
  end
  return { following and text(following) or '0', cursor, gone }
end

-- uuid, server, table, version, the changes' uuid (and attempt), 1 to drop: rows of changes that a late apply left
-- under the floor or beside their layer, or that are of a namespace that was dropped.
writes.sweep = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local header = redis.call('HMGET', keys[1], 'floor', 'l:' .. args[3])
  local above = tonumber(args[4]) > (tonumber(header[1]) or 0)
  local sealed = has(layers_of(header[2]), tonumber(args[4]))
  local awaits_its_seal = string.find(args[5], args[1] .. ':', 1, true) == 1 and above and not sealed
  if awaits_its_seal or (args[5] == args[1] and (above or sealed)) then
    return 0
  end
  local changes = changes_of(keys[1], args[3], args[4], args[5])
  local rows = redis.call('HLEN', changes)
  if args[6] == '1' then
    redis.call('UNLINK', changes)
  end
  return rows
end

-- uuid, server, version, then tables: the floor, or 0 where one of them lost the version, then per table 1 if the version is sealed there, and rows.
reads.look = function(keys, args)
  local refusal = refuse_stranger_but_rebuild(keys[1], args)
  if refusal then
    return refusal
  end
  local found = { tonumber(redis.call('HGET', keys[1], 'floor')) or 0 }
  for at = 4, #args do
    if is_lost(keys[1], args[at], tonumber(args[3])) then
      found[1] = 0
    end
    local listed = ',' .. (redis.call('HGET', keys[1], 'l:' .. args[at]) or '') .. ','
    local changes = changes_of(keys[1], args[at], args[3], args[1])
    touch(keys[1], changes)
    found[#found + 1] = lists(listed, ',' .. args[3] .. ',') and 1 or 0
    found[#found + 1] = redis.call('HLEN', changes)
  end
  return found
end

-- uuid, server: the header, field and value, again and again.
reads.header = function(keys, args)
  return refuse_stranger_but_rebuild(keys[1], args) or all_of('HGETALL', keys[1])
end

-- uuid, server, version: everything up to it is sealed wherever this header is found.
writes.stamp = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  local whole = tonumber(redis.call('HGET', keys[1], 'whole')) or 0
  -- Written even when it is the same (T32): WAIT counts up to its connection's last write, and nothing
  -- behind a call that wrote nothing.
  redis.call('HSET', keys[1], 'whole', math.max(tonumber(args[3]), whole))
  return 1
end

-- uuid, server, table, version, key, ...: the stored values of exactly this version.
reads.rows = function(keys, args)
  local refusal = refuse_stranger_but_rebuild(keys[1], args)
  if refusal then
    return refusal
  end
  local changes = changes_of(keys[1], args[3], args[4], args[1])
  touch(keys[1], changes)
  return redis.call('HMGET', changes, unpack(args, 5))
end
