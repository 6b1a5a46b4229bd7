-- The losses of a key group, and how its rows are put back. docs/decisions/0029.
-- A repair that finds a loss marks the header: u becomes <uuid>!<token>,<token>..., a token for each repair. Readers and
-- merges are refused from then on. Nothing is deleted. The header keeps what is lost until it is back:
--   lost                 versions from this one on may be missing; 0: the header itself was lost, and all with it
--   lost:<table>         versions whose layers were listed and are gone
--   lost_base:<table>    the newest version in a base that is gone
-- A base is put back beside: <table>:r:<token>, with the token as a field of its own while it is being written. The
-- header lists it as r:<table>:<token> until it is in its place.

local TOKENS_MAX = 8

local function tokens_of(stands, uuid)
  local tokens = {}
  go_through(#stands)
  for token in string.gmatch(string.sub(stands, #uuid + 2), '[^,]+') do
    tokens[#tokens + 1] = token
  end
  return tokens
end

local function holds(tokens, token)
  go_through(#tokens)
  for _, one in ipairs(tokens) do
    if one == token then
      return true
    end
  end
  return false
end

-- The newest of them stay.
local function mark(key, uuid, tokens)
  local first = math.max(#tokens - TOKENS_MAX + 1, 1)
  redis.call('HSET', key, 'u', uuid .. REBUILDING .. table.concat(tokens, ',', first))
end

local function mark_by(key, uuid, stands, token)
  local tokens = stands and tokens_of(stands, uuid) or {}
  if not holds(tokens, token) then
    tokens[#tokens + 1] = token
    mark(key, uuid, tokens)
  end
end

-- The hashes that the header lists and that are missing: tables, each with its layers that are left, those that are gone, and the
-- version of its base if that is gone. A hash from before the table's start is no loss.
local function gone_of(key, uuid, starts)
  local fields, gone = all_of('HGETALL', key), {}
  for at = 1, #fields, 2 do
    local kind, name = string.match(fields[at], '^([lb]):(.+)$')
    local found = kind and { name = name, kind = kind, left = {}, gone = {}, dead = {} }
    go_through(kind == 'b' and COST or 0)
    if kind == 'b' and redis.call('EXISTS', place(key, name, ':b')) == 0 then
      local version = tonumber(fields[at + 1])
      local to = version < (starts[name] or 0) and found.dead or found.gone
      to[1] = version
    elseif kind == 'l' then
      for _, layer in ipairs(layers_of(fields[at + 1])) do
        local to = found.left
        go_through(COST)
        if redis.call('EXISTS', changes_of(key, name, text(layer), uuid)) == 0 then
          to = layer < (starts[name] or 0) and found.dead or found.gone
        end
        to[#to + 1] = layer
      end
    end
    if found and #found.gone + #found.dead > 0 then
      gone[#gone + 1] = found
    end
  end
  return gone
end

local function note_gone(key, found)
  local field = 'lost:' .. found.name
  if found.kind == 'b' then
    redis.call('HDEL', key, 'b:' .. found.name, keys_field(found.name))
    if found.gone[1] then
      redis.call('HSET', key, 'lost_base:' .. found.name, text(found.gone[1]))
    end
    return
  end
  local lost = layers_of(redis.call('HGET', key, field))
  local fields = {}
  for at, version in ipairs(found.gone) do
    lost[#lost + 1], fields[at] = version, keys_field(found.name, version)
  end
  for at = 1, #fields, 1000 do
    local last = math.min(at + 999, #fields)
    go_through(COST * (last - at + 1) / 2)
    redis.call('HDEL', key, unpack(fields, at, last))
  end
  list_versions(key, field, lost)
  list_layers(key, found.name, found.left)
end

-- uuid, server, token, then tables that were emptied and the start of each: this server's id, whether the key group is
-- marked now, then the tokens of other repairs. Deletes nothing. A key group whose header lists nothing but what is
-- there, and that nobody marked, stays as it is.
writes.begin_rebuild = function(keys, args)
  local refusal = refuse_server(args)
  if refusal then
    return refusal
  end
  local key, uuid, token = keys[1], args[1], args[3]
  local stands, starts = redis.call('HGET', key, 'u'), {}
  if stands and stands ~= uuid and not marked(stands, uuid) then
    return refuse('TGOTHER', stands)
  end
  for at = 4, #args, 2 do
    starts[args[at]] = tonumber(args[at + 1])
  end
  local gone, loses = gone_of(key, uuid, starts), false
  for _, found in ipairs(gone) do
    loses = loses or #found.gone > 0
  end
  if stands ~= uuid or loses then
    mark_by(key, uuid, stands, token)
  end
  if not stands or stands == uuid .. REBUILDING then  -- as releases before 11 marked what they had emptied
    redis.call('HSET', key, 'lost', '0')
  end
  for _, found in ipairs(gone) do
    note_gone(key, found)
  end
  local reply = { args[2], (stands ~= uuid or loses) and 1 or 0 }
  for _, other in ipairs(stands and tokens_of(stands, uuid) or {}) do
    if other ~= token then
      reply[#reply + 1] = other
    end
  end
  return reply
end

-- uuid, server, token, version: versions from this one on may be missing, and the log does not reach so far.
writes.keep_lost = function(keys, args)
  local refusal = refuse_stranger_but_rebuild(keys[1], args)
  if refusal then
    return refusal
  end
  local key, since = keys[1], tonumber(args[4])
  mark_by(key, args[1], redis.call('HGET', key, 'u'), args[3])
  local lost = tonumber(redis.call('HGET', key, 'lost')) or since
  redis.call('HSET', key, 'lost', text(math.min(lost, since)))
  return 1
end

-- Layers up to the floor, and bases of other tables, are in the new bases.
local function drop_up_to(key, uuid, fields, floor, built)
  for at = 1, #fields, 2 do
    local kind, name = string.match(fields[at], '^([a-z_]+):(.+)$')
    if kind == 'l' or kind == 'lost' then
      local left = {}
      for _, layer in ipairs(layers_of(fields[at + 1])) do
        if layer > floor then
          left[#left + 1] = layer
        else
          go_through(2 * COST)
          redis.call('HDEL', key, keys_field(name, layer))
          if kind == 'l' then
            redis.call('UNLINK', changes_of(key, name, text(layer), uuid))
          end
        end
      end
      list_versions(key, fields[at], left)
    elseif kind == 'lost_base' then
      go_through(COST)
      redis.call('HDEL', key, fields[at])
    elseif kind == 'b' and not built[name] then
      go_through(2 * COST)
      redis.call('UNLINK', place(key, name, ':b'))
      redis.call('HDEL', key, fields[at], keys_field(name))
    end
  end
  redis.call('HSET', key, 'floor', text(floor), 'lost', text(floor + 1))
end

-- The header's field for a base that is written beside.
local function built_field(name, token)
  return 'r:' .. name .. ':' .. token
end

-- uuid, server, token, table: a base is written beside from now on, from scratch.
writes.begin_base = function(keys, args)
  local refusal = refuse_stranger_but_rebuild(keys[1], args)
  if refusal then
    return refusal
  end
  local built = place(keys[1], args[4], ':r:' .. args[3])
  redis.call('HSET', keys[1], built_field(args[4], args[3]), '')
  redis.call('UNLINK', built)
  redis.call('HSET', built, args[3], '')
  return 1
end

-- The base that was written beside takes its place: `version` is the newest in it.
local function put_base(key, name, version, token)
  local built, base = place(key, name, ':r:' .. token), place(key, name, ':b')
  local rows = redis.call('HLEN', built) - 1
  local stood = redis.call('EXISTS', base) == 1
  redis.call('HDEL', built, token)
  if rows > 0 then
    redis.call('RENAME', built, base)
    redis.call('HSET', key, 'b:' .. name, version)
  else
    if stood then
      redis.call('UNLINK', base)
    end
    redis.call('HDEL', key, 'b:' .. name)
  end
  redis.call('HDEL', key, 'lost_base:' .. name, keys_field(name), built_field(name, token))
end

-- uuid, server, token, floor or 0, then table and version, again and again: bases that were written beside take their
-- places. With a floor they are all tables of the key group at that version: what lies at or below it goes.
-- 1; 0: nothing changed, for another repair has done as much or has ended this one.
writes.put_bases = function(keys, args)
  local refusal = refuse_stranger_but_rebuild(keys[1], args)
  if refusal then
    return refusal
  end
  local key, uuid, token, floor = keys[1], args[1], args[3], tonumber(args[4])
  local stands, fields = redis.call('HGET', key, 'u'), all_of('HGETALL', key)
  local reached = tonumber(redis.call('HGET', key, 'floor')) or 0
  if not holds(tokens_of(stands, uuid), token) or (floor > 0 and floor < reached) then
    return 0
  end
  local wanted, built, there = {}, {}, true
  for at = 5, #args, 2 do
    local name = args[at]
    if floor > 0 or redis.call('HGET', key, 'lost_base:' .. name) == args[at + 1] then
      wanted[#wanted + 1], built[name] = { name, args[at + 1] }, true
      there = redis.call('HEXISTS', place(key, name, ':r:' .. token), token) == 1 and there
    end
  end
  if not there then
    return floor > 0 and floor == reached and 0 or refuse('TGLOST', key)
  end
  for _, listed in ipairs(floor > 0 and gone_of(key, uuid, {}) or {}) do
    note_gone(key, listed)  -- lost since: it goes all the same, or was above the floor
  end
  if floor > 0 then
    drop_up_to(key, uuid, all_of('HGETALL', key), floor, built)
  end
  for _, one in ipairs(wanted) do
    put_base(key, one[1], one[2], token)
  end
  return #wanted > 0 and 1 or 0
end

-- uuid, server, token, version, then tokens: this repair has put back all that was lost, versions from this one on
-- among it; the tokens are those that it saw when it began. 1: the key group is whole, and counts at this server.
-- 0: something is still lost, or a repair that began later continues.
writes.end_rebuild = function(keys, args)
  local refusal = refuse_stranger_but_rebuild(keys[1], args)
  if refusal then
    return refusal
  end
  local key, uuid, token, since = keys[1], args[1], args[3], tonumber(args[4])
  local stands, fields = redis.call('HGET', key, 'u'), all_of('HGETALL', key)
  if stands == uuid then
    redis.call('HSET', key, 's', args[2])
    return 1
  end
  local tokens, left, ended, lost = tokens_of(stands, uuid), {}, { token }, #gone_of(key, uuid, {}) > 0
  if not holds(tokens, token) then
    return 0
  end
  for at = 1, #fields, 2 do
    if fields[at] == 'lost' then
      lost = lost or tonumber(fields[at + 1]) < since
    else
      lost = lost or string.match(fields[at], '^lost[_a-z]*:') ~= nil
    end
  end
  for at = 5, lost and 4 or #args do
    ended[#ended + 1] = args[at]
  end
  for _, one in ipairs(tokens) do
    if not holds(ended, one) then
      left[#left + 1] = one
    end
  end
  if lost and #left == 0 then
    return 0  -- the mark stays until a repair finds it
  end
  if not lost then
    redis.call('HDEL', key, 'lost')
  end
  if #left > 0 then
    mark(key, uuid, left)
    return 0
  end
  redis.call('HSET', key, 'u', uuid, 's', args[2])
  return 1
end

-- uuid, server with its origin: the key group moved here, and is whole.
writes.note_moved = function(keys, args)
  local refusal = refuse_stranger(keys[1], args)
  if refusal then
    return refusal
  end
  redis.call('HSET', keys[1], 's', args[2])
  return 1
end

-- uuid, server, table, token, 1 to drop: rows of a base that a repair wrote beside and never put in its place.
writes.sweep_rebuild = function(keys, args)
  local refusal = refuse_server(args)
  if refusal then
    return refusal
  end
  local stands = redis.call('HGET', keys[1], 'u')
  if marked(stands, args[1]) and holds(tokens_of(stands, args[1]), args[4]) then
    return 0
  end
  local built = place(keys[1], args[3], ':r:' .. args[4])
  local rows = redis.call('HLEN', built)
  if args[5] == '1' then
    redis.call('UNLINK', built)
    redis.call('HDEL', keys[1], built_field(args[3], args[4]))
  end
  return rows
end
