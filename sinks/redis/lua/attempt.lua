-- The notes of the pointer about attempts: which attempt of a version may write.
--   begun:<version>  "<decided, us> <attempt>", written before the version's first row
--   discarded        "<version> <decided, us> <attempt>,...": the log lost these attempts, and an operator gave them up
-- KEYS[1] is the pointer.
--
--   begin: uuid, epoch, version, decided_us, attempt -> 1; 0: the version is visible, nothing was noted
--   begun: uuid -> `discarded`, then version and note of each version that has begun above the visible one
--   refuse_attempts: uuid, epoch, remembered_max, (version, decided_us, attempt)... -> 1: these never begin again
--   forget_begun: uuid, version -> 1: the notes from this version on are removed, after all rows written under them

local function is_discarded(discarded, attempt)
  return list_contains(',' .. (discarded or ''), ' ' .. attempt .. ',')
end

writes.begin = on_namespace(function(key, uuid, epoch, version, decided_us, attempt)
  local number, field = tonumber(version), 'begun:' .. version
  local previous_field = 'begun:' .. decimal(number - 1)
  local pointer = redis.call('HMGET', key, 'visible', 'epoch', 'writer', 'discarded', field)
  local visible, note = tonumber(pointer[1]), pointer[5]
  if tonumber(pointer[2]) > tonumber(epoch) then
    return refuse('TGFENCED', pointer[2])
  end
  if number <= visible then
    return 0
  end
  add_work(#(note or ''))
  local noted_attempt = note and string.match(note, ' (.+)$')
  if (noted_attempt and noted_attempt ~= attempt) or is_discarded(pointer[4], attempt) then
    return refuse('TGATTEMPT', version .. ' ' .. attempt .. ' ' .. (noted_attempt or ''))
  end
  redis.call('HSET', key, field, decided_us .. ' ' .. attempt)
  if number - 1 <= visible then
    redis.call('HDEL', key, previous_field)  -- versions begin in order: no older note is left
  end
  return 1
end)

reads.begun = on_namespace(function(key, uuid)
  local fields, visible = read_whole('HGETALL', key), number_field(key, 'visible')
  local notes = { redis.call('HGET', key, 'discarded') or '' }
  for index = 1, #fields, 2 do
    local version = string.match(fields[index], '^begun:(%d+)$')
    if version and tonumber(version) > visible then
      notes[#notes + 1], notes[#notes + 2] = version, fields[index + 1]
    end
  end
  return notes
end)

writes.refuse_attempts = on_namespace(function(key, uuid, epoch, remembered_max, ...)
  local pointer, attempts = redis.call('HMGET', key, 'epoch', 'discarded'), { ... }
  if tonumber(pointer[1]) > tonumber(epoch) then
    return refuse('TGFENCED', pointer[1])
  end
  local discarded = split(pointer[2] or '')
  for index = 1, #attempts, 3 do
    local version, decided_us, attempt = attempts[index], attempts[index + 1], attempts[index + 2]
    if not is_discarded(pointer[2], attempt) then
      discarded[#discarded + 1] = version .. ' ' .. decided_us .. ' ' .. attempt
    end
  end
  redis.call('HSET', key, 'discarded', join_newest(discarded, tonumber(remembered_max)))
  return 1
end)

writes.forget_begun = on_namespace(function(key, uuid, version)
  for _, field in ipairs(read_whole('HKEYS', key)) do
    local begun = string.match(field, '^begun:(%d+)$')
    if begun and tonumber(begun) >= tonumber(version) then
      redis.call('HDEL', key, field)
    end
  end
  return 1
end)
