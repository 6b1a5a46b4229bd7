-- Repairs of a key group: which rows were lost, and how they are restored (docs/decisions/0029). KEYS[1] is the header.
-- A repair that detects a loss marks the header: u becomes "<uuid>!<token>,<token>...", with a token for each repair. From
-- then on readers and merges are refused. Nothing is deleted. The header keeps what is lost until it is restored:
--   lost                 versions from this one on may be missing; 0: the header itself was lost, and everything with it
--   lost:<table>         versions whose layers were listed and are missing
--   lost_base:<table>    the newest version in a base that is missing
-- A base is rebuilt in another hash, <table>:r:<token>, which has the token as a field until it is complete. The header has
-- the field r:<table>:<token> until the hash becomes the base.
--
--   begin_rebuild: uuid, server, token, (table_name, start)... -> this server's id; 1 if the key group is marked, else 0; the
--     tokens of other repairs. The arguments are the tables that were emptied, and when
--   keep_lost: uuid, server, token, version -> 1: versions from this one on may be missing, and the log begins after it
--   begin_base: uuid, server, token, table_name -> 1: this base is rebuilt from scratch
--   put_bases: uuid, server, token, floor, (table_name, version)... -> 1: the rebuilt hashes are the bases; 0: nothing changed,
--     since another repair did the same, or ended this one
--   end_rebuild: uuid, server, token, version, other_token... -> 1: the key group is complete, and counts at this server;
--     0: something is still lost, or a repair that began later continues
--   sweep_rebuild: uuid, server, table_name, token, [drop] -> the number of rows of a hash that never became a base, removed if
--     drop is '1'; 0: its repair continues

local TOKENS_MAX = 8

local function tokens_in(owner, uuid)
  return split(string.sub(owner, #uuid + 2))
end

local function has_token(tokens, token)
  add_work(#tokens)
  return contains(tokens, token)
end

-- Marks the key group with the newest of these tokens.
local function mark(key, uuid, tokens)
  local first = math.max(#tokens - TOKENS_MAX + 1, 1)
  redis.call('HSET', key, 'u', uuid .. REBUILDING .. table.concat(tokens, ',', first))
end

local function add_mark(key, uuid, owner, token)
  local tokens = owner and tokens_in(owner, uuid) or {}
  if not has_token(tokens, token) then
    tokens[#tokens + 1] = token
    mark(key, uuid, tokens)
  end
end

-- The hashes that the header lists and that are missing, by field of the header: the remaining layers, the missing versions
-- (of a base its newest version), and the obsolete ones. A hash from before the table's start is obsolete, and no loss.
local function missing_hashes(key, uuid, starts)
  local fields, losses = read_whole('HGETALL', key), {}
  for index = 1, #fields, 2 do
    local kind, table_name = string.match(fields[index], '^([lb]):(.+)$')
    local loss = kind and { table_name = table_name, kind = kind, remaining = {}, missing = {}, obsolete = {} }
    local start = starts[table_name] or 0
    add_work(kind == 'b' and COMMAND_COST or 0)
    if kind == 'b' and redis.call('EXISTS', base_key(key, table_name)) == 0 then
      local version = tonumber(fields[index + 1])
      local versions = version < start and loss.obsolete or loss.missing
      versions[1] = version
    elseif kind == 'l' then
      for _, version in ipairs(parse_versions(fields[index + 1])) do
        local versions = loss.remaining
        add_work(COMMAND_COST)
        if redis.call('EXISTS', layer_key(key, table_name, decimal(version), uuid)) == 0 then
          versions = version < start and loss.obsolete or loss.missing
        end
        versions[#versions + 1] = version
      end
    end
    if loss and #loss.missing + #loss.obsolete > 0 then
      losses[#losses + 1] = loss
    end
  end
  return losses
end

-- Writes a loss to the header, which lists the missing hashes no more.
local function record_loss(key, loss)
  local table_name = loss.table_name
  if loss.kind == 'b' then
    redis.call('HDEL', key, 'b:' .. table_name, key_set_field(table_name))
    if loss.missing[1] then
      redis.call('HSET', key, 'lost_base:' .. table_name, decimal(loss.missing[1]))
    end
    return
  end
  local field, key_sets = 'lost:' .. table_name, {}
  local lost = parse_versions(redis.call('HGET', key, field))
  for index, version in ipairs(loss.missing) do
    lost[#lost + 1], key_sets[index] = version, key_set_field(table_name, version)
  end
  add_work(COMMAND_COST * #key_sets / 2)
  call_in_parts('HDEL', key, key_sets, 1000)
  write_versions(key, field, lost)
  write_versions(key, 'l:' .. table_name, loss.remaining)
end

-- Deletes nothing. A key group without a mark whose header lists only existing hashes stays as it is.
writes.begin_rebuild = on_server(function(key, uuid, server, token, ...)
  local owner, starts, emptied = redis.call('HGET', key, 'u'), {}, { ... }
  if owner and owner ~= uuid and not is_rebuilding(owner, uuid) then
    return refuse('TGOTHER', owner)
  end
  for index = 1, #emptied, 2 do
    starts[emptied[index]] = tonumber(emptied[index + 1])
  end
  local losses, is_marked = missing_hashes(key, uuid, starts), owner ~= uuid
  for _, loss in ipairs(losses) do
    is_marked = is_marked or #loss.missing > 0
  end
  if is_marked then
    add_mark(key, uuid, owner, token)
  end
  if not owner or owner == uuid .. REBUILDING then  -- `make` marks a key group so in a store that lost everything
    redis.call('HSET', key, 'lost', '0')
  end
  for _, loss in ipairs(losses) do
    record_loss(key, loss)
  end
  local reply = { server, is_marked and 1 or 0 }
  for _, other in ipairs(owner and tokens_in(owner, uuid) or {}) do
    if other ~= token then
      reply[#reply + 1] = other
    end
  end
  return reply
end)

writes.keep_lost = on_rebuilding_key_group(function(key, uuid, server, token, version)
  local since = tonumber(version)
  add_mark(key, uuid, redis.call('HGET', key, 'u'), token)
  local lost = tonumber(redis.call('HGET', key, 'lost')) or since
  redis.call('HSET', key, 'lost', decimal(math.min(lost, since)))
  return 1
end)

-- Removes the layers up to the floor, and the bases of tables that were not rebuilt. The new bases contain the rest.
local function remove_up_to(key, uuid, fields, floor, is_rebuilt)
  for index = 1, #fields, 2 do
    local field, value = fields[index], fields[index + 1]
    local kind, table_name = string.match(field, '^([a-z_]+):(.+)$')
    if kind == 'l' or kind == 'lost' then
      local remaining = {}
      for _, version in ipairs(parse_versions(value)) do
        if version > floor then
          remaining[#remaining + 1] = version
        else
          add_work(2 * COMMAND_COST)
          redis.call('HDEL', key, key_set_field(table_name, version))
          if kind == 'l' then
            redis.call('UNLINK', layer_key(key, table_name, decimal(version), uuid))
          end
        end
      end
      write_versions(key, field, remaining)
    elseif kind == 'lost_base' then
      add_work(COMMAND_COST)
      redis.call('HDEL', key, field)
    elseif kind == 'b' and not is_rebuilt[table_name] then
      add_work(2 * COMMAND_COST)
      redis.call('UNLINK', base_key(key, table_name))
      redis.call('HDEL', key, field, key_set_field(table_name))
    end
  end
  redis.call('HSET', key, 'floor', decimal(floor), 'lost', decimal(floor + 1))
end

-- The hash in which a base is rebuilt, and its field of the header.
local function rebuilt_base(key, table_name, token)
  return hash_key(key, table_name, ':r:' .. token), 'r:' .. table_name .. ':' .. token
end

writes.begin_base = on_rebuilding_key_group(function(key, uuid, server, token, table_name)
  local rebuilt, field = rebuilt_base(key, table_name, token)
  redis.call('HSET', key, field, '')
  redis.call('UNLINK', rebuilt)
  redis.call('HSET', rebuilt, token, '')
  return 1
end)

-- Makes a rebuilt hash the base. `version` is the newest one in it.
local function put_base(key, table_name, version, token)
  local base, rebuilt, field = base_key(key, table_name), rebuilt_base(key, table_name, token)
  local rows = redis.call('HLEN', rebuilt) - 1
  local has_base = redis.call('EXISTS', base) == 1
  redis.call('HDEL', rebuilt, token)
  if rows > 0 then
    redis.call('RENAME', rebuilt, base)
    redis.call('HSET', key, 'b:' .. table_name, version)
  else
    if has_base then
      redis.call('UNLINK', base)
    end
    redis.call('HDEL', key, 'b:' .. table_name)
  end
  redis.call('HDEL', key, 'lost_base:' .. table_name, key_set_field(table_name), field)
end

-- floor '0': single bases are restored. Another floor: the arguments are all tables of the key group at that version, and
-- all other data at or below the floor is removed.
writes.put_bases = on_rebuilding_key_group(function(key, uuid, server, token, floor, ...)
  local owner, floor_number, tables = redis.call('HGET', key, 'u'), tonumber(floor), { ... }
  local current_floor = tonumber(redis.call('HGET', key, 'floor')) or 0
  if not has_token(tokens_in(owner, uuid), token) or (floor_number > 0 and floor_number < current_floor) then
    return 0
  end
  local bases, is_rebuilt, are_complete = {}, {}, true
  for index = 1, #tables, 2 do
    local table_name, version = tables[index], tables[index + 1]
    if floor_number > 0 or redis.call('HGET', key, 'lost_base:' .. table_name) == version then
      bases[#bases + 1], is_rebuilt[table_name] = { table_name, version }, true
      local rebuilt = rebuilt_base(key, table_name, token)
      are_complete = redis.call('HGET', rebuilt, token) and are_complete
    end
  end
  if not are_complete then
    return floor_number > 0 and floor_number == current_floor and 0 or refuse('TGLOST', key)
  end
  if floor_number > 0 then
    for _, loss in ipairs(missing_hashes(key, uuid, {})) do
      record_loss(key, loss)  -- lost since the repair began: it is removed as well, or it is above the floor
    end
    remove_up_to(key, uuid, read_whole('HGETALL', key), floor_number, is_rebuilt)
  end
  for _, base in ipairs(bases) do
    put_base(key, base[1], base[2], token)
  end
  return #bases > 0 and 1 or 0
end)

-- Whether the header still records a loss, apart from versions from `since` on.
local function records_loss(fields, since)
  for index = 1, #fields, 2 do
    local field = fields[index]
    if field == 'lost' and tonumber(fields[index + 1]) < since then
      return true
    elseif field ~= 'lost' and string.match(field, '^lost[_a-z]*:') then
      return true
    end
  end
  return false
end

-- This repair has restored everything that was lost, and all versions from `version` on. The other tokens are those that
-- it saw when it began.
writes.end_rebuild = on_rebuilding_key_group(function(key, uuid, server, token, version, ...)
  local owner, fields = redis.call('HGET', key, 'u'), read_whole('HGETALL', key)
  if owner == uuid then
    redis.call('HSET', key, 's', server)
    return 1
  end
  local tokens, remaining, ended = tokens_in(owner, uuid), {}, { token }
  local is_incomplete = #missing_hashes(key, uuid, {}) > 0
  if not has_token(tokens, token) then
    return 0
  end
  is_incomplete = is_incomplete or records_loss(fields, tonumber(version))
  if not is_incomplete then
    ended = { token, ... }
  end
  for _, other in ipairs(tokens) do
    if not has_token(ended, other) then
      remaining[#remaining + 1] = other
    end
  end
  if is_incomplete and #remaining == 0 then
    return 0  -- the mark stays for the next repair
  end
  if not is_incomplete then
    redis.call('HDEL', key, 'lost')
  end
  if #remaining > 0 then
    mark(key, uuid, remaining)
    return 0
  end
  redis.call('HSET', key, 'u', uuid, 's', server)
  return 1
end)

writes.sweep_rebuild = on_server(function(key, uuid, server, table_name, token, drop)
  local owner = redis.call('HGET', key, 'u')
  if is_rebuilding(owner, uuid) and has_token(tokens_in(owner, uuid), token) then
    return 0
  end
  local rebuilt, field = rebuilt_base(key, table_name, token)
  local rows = redis.call('HLEN', rebuilt)
  if drop == '1' then
    redis.call('UNLINK', rebuilt)
    redis.call('HDEL', key, field)
  end
  return rows
end)
