-- Shared by all functions. Each function takes the keys of one hash tag and is atomic there.
-- Refusals are error replies whose first word says what is proven:
--   TGNONE     there is no namespace here
--   TGOTHER    another namespace (uuid) is here
--   TGLOST     the key group has no header: its server lost its data
--   TGSERVER   this is not the server the caller took it for; its id follows
--   TGEXPIRED  the version was retired; the oldest that can be read follows
--   TGFENCED   a higher epoch is claimed; it follows
--   TGATTEMPT  the version is another attempt's, or this one was discarded: version and attempt follow, and the noted one
--   TGAHEAD    no lease on a version above the visible one; that follows
--   TGLEASES   as many leases as max_leases allows, which follows
--   TGLEASE    an id or a length that no lease has
--   TGLISTS    lists, names or arguments that no client writes are more than what one call goes through; the limit follows
--   TGCURSOR   a cursor that no answer of a scan had
--   TGNUMBER   a version that no namespace reaches; it follows

--
-- The slot of a Cluster that moves (MIGRATING at the one server, IMPORTING at the other) has its keys on both. Until it has
-- moved, an access to a key that is not here is an error inside a function: the key left, or is to come, or was never
-- anywhere, or the same call has just emptied it. Lua takes nothing back. Hence two rules (docs/decisions/0066):
--   1. No function writes while its slot moves: each of `writes` runs in `on_stable_slot`.
--   2. No function of `reads` takes "not here" for "absent". A client that follows ASK gets no error where one key
--      alone is accessed, so a key that may be absent is first touched together with one that is here.

local reads, writes = {}, {}

-- An error in a slot that moves, unless all of these keys are here.
local function touch(...)
  redis.call('EXISTS', ...)
end

-- Touches a key that never exists: in a slot that moves the call fails before it wrote anything.
local function on_stable_slot(write)
  return function(keys, args)
    touch(keys[1], keys[1] .. ':')
    return write(keys, args)
  end
end

local function refuse(code, detail)
  return redis.error_reply(code .. ' ' .. tostring(detail))
end

-- Whole numbers as text: Lua would write large ones as 1.7e+15.
local function text(number)
  return string.format('%.0f', number)
end

-- The time of a call on the server is bounded: a writer may make the lists in its own header or pointer as long as it likes, and
-- every other client waits for a call that goes through them. The unit is some 0.1 us: a byte of a list that is taken apart. A call
-- of Redis in a loop over a list, and a field of a hash that is read whole, are COST units.
local COST, FIND_BYTES, ATTEMPT_MAX = 15, 32, 200
-- By default some 50 ms. A read looks for 500 keys in each of 1,000 layers at most. A repair and a fill, which are seldom, look at each
-- layer of each table.
local WORK_MAX = 500000
local WORK_MAX_OF = {
  read = 2000000, begin_fill = 3000000, discard = 3000000, begin_rebuild = 3000000, put_bases = 3000000, end_rebuild = 3000000,
}
local gone_through, work_max = 0, WORK_MAX

local function go_through(count)
  gone_through = gone_through + count
  if gone_through > work_max then
    error({ err = 'TGLISTS ' .. text(work_max) })
  end
end

-- All of a hash, by HGETALL, HKEYS or HVALS.
local function all_of(command, key)
  go_through(COST * redis.call('HLEN', key))
  return redis.call(command, key)
end

-- The arguments of a call are bounded as well, for any user may call a function with as many arguments as it likes, and every
-- other client waits meanwhile: with these numbers some 5 ms. The key of a row has at most 32 KiB. The first arguments of
-- a call on a key group are names and numbers, which its loops repeat.
local ARGS_MAX, KEYS_MAX, ARGS_BYTES_MAX, HEAD, HEAD_BYTES_MAX = 1100, 32, 67108864, 3, 1024
-- A namespace has at most some 870 tables. A seal has three arguments for each of them, a rebuild two. A read looks for each key in
-- each layer, and `look` asks four times for each table. `drop`, which ends a namespace, names all tables that there ever were.
local ARGS_MAX_OF = { drop = 20000, look = 300, read = 600, rows = 600, seal = 2750, seal_many = 2750, seal_again = 2750,
  begin_rebuild = 2750, put_bases = 2750 }

-- The one guard of every function: it refuses before the first access.
local function guarded(name, call)
  local most = ARGS_MAX_OF[name] or ARGS_MAX
  return function(keys, args)
    gone_through, work_max = 0, WORK_MAX_OF[name] or WORK_MAX
    if #args > most or #keys > KEYS_MAX then
      return refuse('TGLISTS', text(most))
    end
    local bytes, head = 0, string.sub(keys[1] or '', -2) == ':h' and HEAD or 0
    for at = 1, #args do
      bytes = bytes + #args[at]
      if bytes > ARGS_BYTES_MAX or (at <= head and #args[at] > HEAD_BYTES_MAX) then
        return refuse('TGLISTS', text(at <= head and HEAD_BYTES_MAX or ARGS_BYTES_MAX))
      end
    end
    return call(keys, args)
  end
end

-- A number that is an argument, of rows or bytes: at most this many.
local function at_most(most, wanted)
  return math.min(most, tonumber(wanted))
end

-- Whether a list has this text; its length is that of an attempt with what stands around it.
local function lists(list, wanted)
  if #wanted > ATTEMPT_MAX then
    error({ err = 'TGLISTS ' .. text(ATTEMPT_MAX) })
  end
  go_through(math.ceil(#list / FIND_BYTES))
  return string.find(list, wanted, 1, true) ~= nil
end

-- A server is known by its replication id, which a promoted or restarted one changes.
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
