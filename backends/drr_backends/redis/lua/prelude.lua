-- What the operations share. The library is this file followed by the others, each inside its own block;
-- the loader puts `local LIBRARY = '<hash>'` in front.
--
-- Rules for every operation
--   * every key it touches is in KEYS; the #!lua form refuses others;
--   * all reading and checking comes before the first write: there is no rollback;
--   * what frees memory or keeps somebody alive has the flag allow-oom, what adds jobs has not;
--   * at most ITEMS items of a kind; nothing is unpacked in pieces of more than CHUNK values;
--   * records are opaque strings made by the caller. What Lua itself must know stands in front of them:
--     a frame starts with its head: sequence u64, attempts u16, losses u16, failures u16, flags u16, header
--     length u32 (big-endian) and the header. A lease record is the id of its pool entry, a space, the head of
--     its job, and the rest. A delayed job is the name of its lane, a line break and its frame.
--
-- A refusal is an error reply whose first word says which: NOTLEADER, REFUSED, QUOTA, EXISTS, NOLIMIT or BADCALL.

local ITEMS = 1000
local CHUNK = 4000
local HEADER_MAX = 4096
local PREFIX = 20
local RETURNED, STRUCK = 1, 2 -- flags: put back at the head of its lane; cancelled or expired while it waited
local GROUP = 'workers'

local function register(name, callback, flags)
    redis.register_function{function_name = 'drr_' .. name .. '_' .. LIBRARY, callback = callback, flags = flags}
end

local function refuse(code, text)
    return redis.error_reply(code .. ' ' .. text)
end

-- Calls `command key v1 v2 ...` with as many values at a time as may be unpacked.
local function each_chunk(command, key, values)
    for from = 1, #values, CHUNK do
        redis.call(command, key, unpack(values, from, math.min(from + CHUNK - 1, #values)))
    end
end

-- Like HMGET for any number of fields: a table of field to value (false where there is none).
local function get_fields(key, fields)
    local found = {}
    for from = 1, #fields, CHUNK do
        local to = math.min(from + CHUNK - 1, #fields)
        local values = redis.call('HMGET', key, unpack(fields, from, to))
        for i = from, to do
            found[fields[i]] = values[i - from + 1]
        end
    end
    return found
end

-- The length of an entry's head, or nothing if it is no frame.
local function head_length(entry)
    if #entry >= PREFIX then
        local header = struct.unpack('>I4', entry, 17)
        if header <= HEADER_MAX and PREFIX + header <= #entry then
            return PREFIX + header
        end
    end
end

-- The part of a lane entry that a reader of headers gets to see: its head, or the beginning of what is no frame.
-- A burial names its entry by exactly this.
local function visible(entry)
    return string.sub(entry, 1, head_length(entry) or HEADER_MAX)
end

-- Of a lease record: the id of its pool entry, the head of its job, and the length of what these two fill.
-- Nothing of a record that is none.
local function parse_lease(record)
    local id, start = string.match(record, '^(%d+%-%d+) ()')
    if id and #record >= start + PREFIX - 1 then
        local filled = start + PREFIX - 1 + struct.unpack('>I4', record, start + 16)
        if filled <= #record then
            return id, string.sub(record, start, filled), filled
        end
    end
end

-- The field of `leases` that leads from a job's sequence number (8 bytes) to the token of its lease.
local function running(sequence)
    return '#' .. sequence
end

-- The flags of a lane entry; 0 of what is no frame.
local function flags_of(entry)
    return head_length(entry) and (struct.unpack('>I2', entry, 15)) or 0
end

-- A frame with other counts and flags. Of a put-back entry the store keeps the number in `back` (see docs/protocol.md).
local function recount(frame, attempts, losses, failures, flags)
    return string.sub(frame, 1, 8) .. struct.pack('>I2I2I2I2', attempts, losses, failures, flags) .. string.sub(frame, 17)
end

-- The lane's name and the frame of a delayed job, or nothing.
local function parse_delayed(value)
    local at = value and string.find(value, '\n', 1, true)
    if at then
        return string.sub(value, 1, at - 1), string.sub(value, at + 1)
    end
end

-- The attempts of a job that was put back into a lane and waits there, or nothing.
local function put_back_attempts(back, name, packed)
    local attempts, where = string.match(redis.call('HGET', back, '#' .. packed) or '', '^(%d+) (.*)$')
    return where == name and attempts or nil
end

-- Where in a lane a job stands (from 0) and its entry, or nothing. Fresh entries are in order of their numbers; the
-- put-back ones before them are in none. `thorough`: look at every entry if order did not lead to it.
local function find_in_lane(lane, back, name, packed, thorough)
    local returned = tonumber(redis.call('HGET', back, name) or 0)
    local length = redis.call('LLEN', lane)
    local function scan(from, to)
        for at = from, to, 100 do
            for i, entry in ipairs(redis.call('LRANGE', lane, at, math.min(at + 99, to))) do
                if string.sub(entry, 1, 8) == packed and head_length(entry) and flags_of(entry) < STRUCK then
                    return at + i - 1, entry
                end
            end
        end
    end
    if put_back_attempts(back, name, packed) then
        return scan(0, returned - 1)
    end
    local wanted, low, high = struct.unpack('>I8', packed), returned, length - 1
    while low <= high do
        local middle = math.floor((low + high) / 2)
        local at, entry = middle, redis.call('LINDEX', lane, middle)
        while at <= high and not head_length(entry) do -- anybody's bytes, which say nothing of the order
            at = at + 1
            entry = redis.call('LINDEX', lane, at) or ''
        end
        local number = at <= high and struct.unpack('>I8', entry) or wanted + 1
        if number == wanted and flags_of(entry) < STRUCK then
            return at, entry
        elseif number == wanted then
            return nil
        elseif number < wanted then
            low = at + 1
        else
            high = middle - 1
        end
    end
    if thorough then
        return scan(0, length - 1)
    end
end

local function milliseconds()
    local now = redis.call('TIME')
    return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Puts a letter (preamble and entry) among the dead. `counter` is the hash with the number of the last one.
local function bury(counter, dead, graves, organisation, letter)
    local number = redis.call('HINCRBY', counter, 'letters', 1)
    redis.call('HSET', dead, number, struct.pack('>I8', milliseconds()) .. letter)
    redis.call('ZADD', graves, number, number)
    redis.call('ZADD', organisation, number, number)
end

-- Parts of the commit, filled by the files pass_*.lua.
local pass = {}

-- nil, or the first of `keys[from..to]` that exists with another type than `kind`.
local function wrong_type(keys, kind, from, to)
    for i = from, to do
        local found = redis.call('TYPE', keys[i]).ok
        if found ~= kind and found ~= 'none' then
            return keys[i]
        end
    end
end

-- Removes the consumers of a pool that belong to no incarnation on record and have nothing pending.
local function sweep_consumers(pool, workers)
    local consumers = redis.pcall('XINFO', 'CONSUMERS', pool, GROUP)
    if consumers.err then
        return
    end
    for _, consumer in ipairs(consumers) do
        local about = {}
        for i = 1, #consumer, 2 do
            about[consumer[i]] = consumer[i + 1]
        end
        local name, incarnation = string.match(about.name, '^([^:]+):(.+)$')
        local known = name and redis.call('HGET', workers, name .. ':incarnation') == incarnation
        if not known and tonumber(about.pending) == 0 then
            redis.call('XGROUP', 'DELCONSUMER', pool, GROUP, about.name)
        end
    end
end
