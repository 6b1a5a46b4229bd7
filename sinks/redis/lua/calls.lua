-- The parts that all functions share: refusals, the limits of a call, stable slots.
-- A function is called with keys of one hash tag and is atomic there. It is a member of `reads` or `writes`.
--
-- The head of each file is the table of its functions, as "name: arguments -> reply". All arguments are texts.
-- [x] is optional. x... and (x, y)... are repeated. The suffix _us means microseconds; times count from 1970.
-- tests/unit/sinks/redis/test_calls.py compares the tables with the functions, the readers and docs/storage-format.md.
--
--   present: -> 1
--
-- A refusal is an error reply. Its first word is a code, which says what is proven:
--   TGNONE     the namespace does not exist
--   TGOTHER    the name belongs to another namespace; its uuid follows
--   TGLOST     the server lost the key group, or rows of it
--   TGSERVER   another server was expected; this server's id follows
--   TGEXPIRED  the version was retired; the oldest readable version follows
--   TGFENCED   a higher epoch was claimed; it follows
--   TGATTEMPT  another attempt of the version is noted, or this one was discarded; version, attempt and the noted one follow
--   TGAHEAD    a lease on a version above the visible one is impossible; the visible version follows
--   TGLEASES   the number of leases has reached max_leases, which follows
--   TGLEASE    the lease has an invalid id or duration
--   TGLISTS    lists, names or arguments are larger than one call may process; the limit follows
--   TGCURSOR   no reply of a scan had this cursor
--   TGNUMBER   no namespace reaches this version, which follows
--
-- A slot of a Cluster that moves has its keys on two servers (MIGRATING at one, IMPORTING at the other). Until it has
-- moved, a function that accesses a missing key fails. The key may have left, may still arrive, may never have existed,
-- or may have been emptied by the same call. Lua rolls nothing back. Two rules follow (docs/decisions/0066):
--   1. No function writes while its slot moves: each function of `writes` runs in `on_stable_slot`.
--   2. No function of `reads` takes a missing key for an absent one. A client that follows ASK gets no error for a
--      command with one key. So a key that may be absent is first touched together with a key that exists.

local reads, writes = {}, {}

-- Raises an error in a slot that moves, unless all keys are on this server.
local function touch(...)
  redis.call('EXISTS', ...)
end

-- Touches a key that never exists. In a slot that moves the call fails there, before its first write.
local function on_stable_slot(write)
  return function(keys, args)
    touch(keys[1], keys[1] .. ':')
    return write(keys, args)
  end
end

local function refuse(code, detail)
  return redis.error_reply(code .. ' ' .. tostring(detail))
end

-- The rights of a writer, by deploy/rights/redis.acl. A function ends at a command that its user may not send, and what it
-- did before stays: each function of `writes` is refused as a whole, but for those that users with fewer rights call.
local RIGHTS, OF_OTHERS = { 'EXISTS', 'HDEL', 'HGET', 'HGETALL', 'HKEYS', 'HLEN', 'HMGET', 'HSCAN', 'HSET', 'HSETNX', 'HVALS',
  'RENAME', 'UNLINK', 'XADD' }, { lease = true, release = true, set_alias = true, drop_alias = true }

-- A function of `writes`, which writes all that it has to or nothing.
local function write_whole(name)
  local write = on_stable_slot(writes[name])
  return OF_OTHERS[name] and write or function(keys, args)
    for _, command in ipairs(RIGHTS) do
      if not redis.acl_check_cmd(command, keys[1], keys[1], keys[1], keys[1], keys[1]) then
        return refuse('NOPERM', 'this user has no permissions to run ' .. command .. ' on ' .. keys[1])
      end
    end
    return write(keys, args)
  end
end

-- A whole number in decimal digits. Lua would write large ones as 1.7e+15.
local function decimal(number)
  return string.format('%.0f', number)
end

-- The work of a call is limited, since all other clients wait for it. A writer may make the lists in its own header or
-- pointer as long as it likes. A unit of work takes about 0.1 us: parsing one byte of a list. A Redis command in a loop
-- over a list costs COMMAND_COST units, and so does each field of a hash that is read whole.
local COMMAND_COST, SEARCHED_BYTES_PER_UNIT, ATTEMPT_BYTES_MAX = 15, 32, 200
-- Bytes of a name or a row key that a command gets, which hashes and compares them.
local NAMED_BYTES_PER_UNIT = 64
-- The default is about 50 ms. A read searches 1,000 layers for 500 keys at most. Repairs and fills are rare, and
-- process each layer of each table.
local WORK_MAX = 500000
local WORK_MAX_OF = {
  read = 3000000, begin_fill = 3000000, discard = 3000000, begin_rebuild = 3000000, put_bases = 3000000, end_rebuild = 3000000,
}
local work_done, work_max = 0, WORK_MAX

local function add_work(units)
  work_done = work_done + units
  if work_done > work_max then
    error({ err = 'TGLISTS ' .. decimal(work_max) })
  end
end

-- Reads a whole hash by HGETALL, HKEYS or HVALS.
local function read_whole(command, key)
  add_work(COMMAND_COST * redis.call('HLEN', key))
  return redis.call(command, key)
end

-- The arguments of a call are limited as well, to about 5 ms of work: any user may send any number of them. Keys, names
-- and numbers are short, since loops repeat them. A row key of any length may be asked for, and its bytes count as work.
local ARGS_MAX, KEYS_MAX, ARGS_BYTES_MAX = 1100, 32, 67108864
local NAME_BYTES_MAX, CONTENT_BYTES_MAX = 1024, 8388608
-- A namespace has at most about 870 tables. A seal has three arguments for each of them, a rebuild has two. A read
-- searches each layer for each key. `look` sends four commands for each table. `drop` names all tables that ever existed.
local ARGS_MAX_OF = { drop = 20000, look = 300, read = 600, rows = 600, seal = 2750, seal_many = 2750, seal_again = 2750,
  begin_rebuild = 2750, put_bases = 2750 }

-- The functions with longer arguments: the first of them, and its most bytes. Row keys, or stored content.
local LONG_ARGS_OF = {
  read = { 6, ARGS_BYTES_MAX }, rows = { 5, ARGS_BYTES_MAX }, create = { 2, CONTENT_BYTES_MAX },
  ready = { 2, CONTENT_BYTES_MAX }, list_servers = { 3, CONTENT_BYTES_MAX }, publish = { 5, CONTENT_BYTES_MAX },
  publish_filled = { 5, CONTENT_BYTES_MAX }, resume = { 8, CONTENT_BYTES_MAX }, put_schemas = { 2, CONTENT_BYTES_MAX },
  put_entries = { 2, CONTENT_BYTES_MAX }, drop = { 2, CONTENT_BYTES_MAX },
}

-- Wraps every function, and refuses a call before its first access.
local function within_limits(name, run)
  local args_max = ARGS_MAX_OF[name] or ARGS_MAX
  local long = LONG_ARGS_OF[name] or { args_max + 1, 0 }
  return function(keys, args)
    work_done, work_max = 0, WORK_MAX_OF[name] or WORK_MAX
    if #args > args_max or #keys > KEYS_MAX then
      return refuse('TGLISTS', decimal(args_max))
    end
    local bytes = 0
    for index = 1, #args do
      local arg_max = index < long[1] and NAME_BYTES_MAX or long[2]
      bytes = bytes + #args[index]
      if #args[index] > arg_max or bytes > ARGS_BYTES_MAX then
        return refuse('TGLISTS', decimal(arg_max))
      end
    end
    for index = 1, #keys do
      if #keys[index] > NAME_BYTES_MAX then
        return refuse('TGLISTS', decimal(NAME_BYTES_MAX))
      end
    end
    return run(keys, args)
  end
end

-- Makes a guard. `refuse_call` returns a refusal or nil. The guarded function gets the first key and the arguments.
local function guard(refuse_call)
  return function(run)
    return function(keys, args)
      return refuse_call(keys[1], args) or run(keys[1], unpack(args))
    end
  end
end

local without_guard = guard(function() return nil end)

-- A number of rows or bytes that the caller asks for, limited.
local function capped(limit, number)
  return math.min(limit, tonumber(number))
end

-- Whether a list contains an attempt, with its separators.
local function list_contains(list, item)
  if #item > ATTEMPT_BYTES_MAX then
    error({ err = 'TGLISTS ' .. decimal(ATTEMPT_BYTES_MAX) })
  end
  add_work(math.ceil(#list / SEARCHED_BYTES_PER_UNIT))
  return string.find(list, item, 1, true) ~= nil
end

-- Splits a list at its commas.
local function split(list)
  local items = {}
  add_work(#list)
  for item in string.gmatch(list, '[^,]+') do
    items[#items + 1] = item
  end
  return items
end

-- Joins the newest items of a list, each with a comma after it.
local function join_newest(items, count_max)
  local first = math.max(1, #items - count_max + 1)
  return table.concat(items, ',', first) .. ','
end

-- Sends a command with many fields. Lua passes some 8,000 arguments to a command at most.
local function call_in_parts(command, key, fields, part)
  local sum = 0
  for first = 1, #fields, part do
    sum = sum + redis.call(command, key, unpack(fields, first, math.min(first + part - 1, #fields)))
  end
  return sum
end

-- The replication id of this server. A promotion or a restart changes it.
local function server_id()
  local info = redis.call('INFO', 'replication')
  if not string.find(info, 'role:master', 1, true) then
    return 'replica'
  end
  return string.match(info, 'master_replid:(%x+)')
end

local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

reads.present = without_guard(function()
  return 1
end)
