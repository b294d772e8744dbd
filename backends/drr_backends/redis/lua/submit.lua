-- Appends jobs to their lanes, all or none; recognises a repeated call.
--
-- KEYS    1 sequence counter, 2 the client's remembered calls, 3 active lanes, 4 wake stream, 5... the lanes
-- ARGV    1 call number, 2 number of jobs, 3 calls to remember, 4 milliseconds to remember them
--         5 msgpack: for each lane [its name, index of job (from 0), body, index, body, ...]
--         A body is a frame without its sequence number.
-- Returns the first job's sequence number as a string; job i has that number plus i.

local function submit(keys, args)
    local number, count, keep, expiry = args[1], tonumber(args[2]), tonumber(args[3]), args[4]
    if not count or count < 1 or count > ITEMS then
        return refuse('BADCALL', 'a submit holds 1 to ' .. ITEMS .. ' jobs')
    end
    local known = redis.call('HGET', keys[2], number)
    if known then
        local first, had = string.match(known, '^(%d+):(%d+)$')
        if tonumber(had) ~= count then
            return refuse('BADCALL', 'call ' .. number .. ' of this client held another number of jobs')
        end
        return first
    end
    local lanes = cmsgpack.unpack(args[5])
    local was_empty = {}
    for i = 1, #lanes do
        was_empty[i] = redis.call('LLEN', keys[4 + i]) == 0
    end
    local bad = wrong_type(keys, 'string', 1, 1) or wrong_type(keys, 'set', 3, 3) or wrong_type(keys, 'stream', 4, 4)
    if bad then
        return refuse('BADCALL', bad .. ' has the wrong type')
    end

    local last = redis.call('INCRBY', keys[1], count)
    local base = last - count + 1
    for i, lane in ipairs(lanes) do
        local frames = {}
        for j = 2, #lane, 2 do
            frames[#frames + 1] = struct.pack('>I8', base + lane[j]) .. lane[j + 1]
        end
        redis.call('RPUSH', keys[4 + i], unpack(frames))
        if was_empty[i] then
            redis.call('SADD', keys[3], lane[1])
            redis.call('XADD', keys[4], '*', 'lane', lane[1], 'head', visible(frames[1]))
        end
    end
    local first = string.format('%.0f', base)
    redis.call('HSET', keys[2], number, first .. ':' .. count)
    redis.call('PEXPIRE', keys[2], expiry)
    if redis.call('HLEN', keys[2]) > keep then
        local oldest = tonumber(number) - keep
        for _, other in ipairs(redis.call('HKEYS', keys[2])) do
            if (tonumber(other) or oldest) <= oldest then
                redis.call('HDEL', keys[2], other)
            end
        end
    end
    return first
end

register('submit', submit, {})
