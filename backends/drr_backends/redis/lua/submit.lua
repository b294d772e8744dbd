-- Appends jobs to their lanes, or keeps them aside until they are due, all or none; recognises a repeated call.
--
-- KEYS    1 sequence counter, 2 the client's remembered calls, 3 active lanes, 4 wake stream, 5 admission,
--         6 depth, 7 due, 8 delayed, then the lanes, buckets and aliases
-- ARGV    1 call number, 2 number of jobs, 3 calls to remember, 4 milliseconds to remember them
--         5 msgpack: for each lane [its name, index of job (from 0), body, index, body, ...]
--         A body is a frame without its sequence number.
--         6 msgpack: for each tenant [field of depth, fields of admission (the first that exists counts) separated by
--         line breaks, its bucket in KEYS, jobs, micro-worker-seconds]; projects before organisations
--         7 msgpack, or '': names of the shared limits that the jobs name
--         8 msgpack, or '': for each job with a key or a name of its own [index, its alias in KEYS, milliseconds to
--         remember it, 1 if a taken one refuses the call, key for people]
--         9 msgpack, or '': index of job, due time in seconds, index, ...
--         10 the call's nonce: that of its first job, '.1' behind it that of the second, and so on
-- Returns the first job's sequence number as a string (job i has that number plus i), followed by index and id of each
--         job that was not added because its key was taken; refuses QUOTA, EXISTS, NOLIMIT or BADCALL.

local ROOM = 1e15

local function unpacked(blob)
    return blob ~= '' and cmsgpack.unpack(blob) or {}
end

local function known_call(key, number, count)
    local known = redis.call('HGET', key, number)
    if not known then
        return nil
    end
    local first, had, rest = string.match(known, '^(%d+):(%d+)(.*)$')
    if tonumber(had) ~= count then
        return refuse('BADCALL', 'call ' .. number .. ' of this client held another number of jobs')
    end
    local answer = {first}
    for _, part in ipairs(unpacked(string.sub(rest, 2))) do
        answer[#answer + 1] = part
    end
    return answer
end

-- What a quota says: 'rate burst jobs micros', '-' for none.
local function quota_of(admission, fields)
    for field in string.gmatch(fields, '[^\n]+') do
        local found = redis.call('HGET', admission, field)
        if found then
            local rate, burst, jobs, micros = string.match(found, '^(%S+) (%S+) (%S+) (%S+)$')
            return {rate = tonumber(rate), burst = tonumber(burst), jobs = tonumber(jobs), micros = tonumber(micros)}
        end
    end
end

local function quota_refused(tenant, what, limit, depth, room, pause)
    return refuse('QUOTA', string.format('%s %s %.17g %.17g %.0f %.6f', tenant, what, limit, depth, room, pause))
end

-- Returns an error reply, or nothing; notes in `buckets` what is left in each.
local function check_quotas(keys, tenants, buckets)
    if redis.call('EXISTS', keys[5]) == 0 then
        return
    end
    local now
    for _, tenant in ipairs(tenants) do
        local quota = quota_of(keys[5], tenant[2])
        local field, jobs, micros = tenant[1], tenant[4], tenant[5]
        if quota and jobs > 0 then
            if quota.jobs then
                local depth = tonumber(redis.call('HGET', keys[6], field) or 0)
                if depth + jobs > quota.jobs then
                    return quota_refused(field, 'jobs', quota.jobs, depth, math.max(0, quota.jobs - depth), 1)
                end
            end
            if quota.micros then
                local left = quota.micros - tonumber(redis.call('HGET', keys[6], field .. '#') or 0)
                if micros > left then
                    local room = math.max(0, math.min(jobs, math.floor(left * jobs / math.max(1, micros))))
                    return quota_refused(field, 'work', quota.micros / 1e6, (quota.micros - left) / 1e6, room, 1)
                end
            end
            if quota.rate then
                if not now then
                    local time = redis.call('TIME')
                    now = time[1] + time[2] / 1e6
                end
                local tokens, at = string.match(redis.call('GET', keys[tenant[3]]) or '', '^(%S+) (%S+)$')
                tokens = math.min(quota.burst, (tonumber(tokens) or quota.burst)
                    + math.max(0, now - (tonumber(at) or now)) * quota.rate)
                if jobs > tokens then
                    local pause = math.max(0.001, (math.min(jobs, quota.burst) - tokens) / quota.rate)
                    return quota_refused(field, 'rate', quota.rate, jobs, math.floor(tokens), pause)
                end
                buckets[#buckets + 1] = {tenant[3], string.format('%.6f %.6f', tokens - jobs, now),
                    math.max(1, math.ceil((quota.burst - tokens + jobs) / quota.rate * 1000))}
            end
        end
    end
end

local function check_limits(admission, names)
    for _, name in ipairs(names) do
        if redis.call('HEXISTS', admission, 'limit:' .. name) == 0 then
            return refuse('NOLIMIT', name)
        end
    end
end

-- Which jobs are not added: index to id, or to the index of an earlier job of this call. Or nil and an error reply.
local function find_taken(keys, aliases)
    local taken, here = {}, {}
    for _, alias in ipairs(aliases) do
        local index, key = alias[1], keys[alias[2]]
        local found = redis.call('GET', key) or here[key]
        if found and alias[4] == 1 then
            return nil, refuse('EXISTS', alias[5] .. ' ' .. tostring(found))
        elseif found then
            taken[index] = found
        else
            here[key] = index
        end
    end
    return taken
end

local function submit(keys, args)
    local number, count, keep, expiry = args[1], tonumber(args[2]), tonumber(args[3]), args[4]
    if not count or count < 1 or count > ITEMS then
        return refuse('BADCALL', 'a submit holds 1 to ' .. ITEMS .. ' jobs')
    end
    local known = known_call(keys[2], number, count)
    if known then
        return known
    end
    local lanes, tenants, aliases, dues = cmsgpack.unpack(args[5]), cmsgpack.unpack(args[6]), unpacked(args[8]), {}
    local given = unpacked(args[9])
    for i = 1, #given, 2 do
        dues[given[i]] = given[i + 1]
    end
    local bad = wrong_type(keys, 'string', 1, 1) or wrong_type(keys, 'set', 3, 3) or wrong_type(keys, 'stream', 4, 4)
        or wrong_type(keys, 'hash', 5, 6) or wrong_type(keys, 'zset', 7, 7) or wrong_type(keys, 'hash', 8, 8)
    if bad then
        return refuse('BADCALL', bad .. ' has the wrong type')
    end
    local refusal = check_limits(keys[5], unpacked(args[7]))
    if refusal then
        return refusal
    end
    local taken
    taken, refusal = find_taken(keys, aliases)
    if not taken then
        return refusal
    end
    if next(taken) then
        -- The caller counted all jobs; those that are not added do not count.
        for _, tenant in ipairs(tenants) do
            for i = 6, #tenant, 2 do
                if taken[tenant[i]] then
                    tenant[4], tenant[5] = tenant[4] - 1, tenant[5] - tenant[i + 1]
                end
            end
        end
    end
    local buckets = {}
    refusal = check_quotas(keys, tenants, buckets)
    if refusal then
        return refusal
    end
    local was_empty, due_first = {}, nil
    for i = 1, #lanes do
        was_empty[i] = redis.call('LLEN', keys[8 + i]) == 0
    end
    if #given > 0 then
        due_first = tonumber(redis.call('ZRANGE', keys[7], 0, 0, 'WITHSCORES')[2] or ROOM)
    end

    local last = redis.call('INCRBY', keys[1], count)
    local base = last - count + 1
    local now, earliest = milliseconds() / 1000, nil
    local ids = {}
    for i, lane in ipairs(lanes) do
        local frames = {}
        for j = 2, #lane, 2 do
            local index = lane[j]
            local packed = struct.pack('>I8', base + index)
            if not taken[index] then
                local frame = packed .. lane[j + 1]
                if dues[index] and dues[index] > now then
                    redis.call('HSET', keys[8], packed, lane[1] .. '\n' .. frame)
                    redis.call('ZADD', keys[7], string.format('%.17g', dues[index]), packed)
                    earliest = math.min(earliest or dues[index], dues[index])
                else
                    frames[#frames + 1] = frame
                end
            end
            if #aliases > 0 then
                local nonce = index > 0 and string.format('%s.%.0f', args[10], index) or args[10]
                ids[index] = string.format('%s:%.0f~%s', lane[1], base + index, nonce)
            end
        end
        if #frames > 0 then
            redis.call('RPUSH', keys[8 + i], unpack(frames))
            if was_empty[i] then
                redis.call('SADD', keys[3], lane[1])
                redis.call('XADD', keys[4], '*', 'lane', lane[1], 'head', visible(frames[1]))
            end
        end
    end
    if earliest and earliest < due_first then
        redis.call('XADD', keys[4], '*', 'due', string.format('%.17g', earliest))
    end
    for _, tenant in ipairs(tenants) do
        redis.call('HINCRBY', keys[6], tenant[1], tenant[4])
        redis.call('HINCRBY', keys[6], tenant[1] .. '#', string.format('%.0f', tenant[5]))
    end
    for _, bucket in ipairs(buckets) do
        redis.call('SET', keys[bucket[1]], bucket[2], 'PX', bucket[3])
    end
    local answer, others = {string.format('%.0f', base)}, {}
    for _, alias in ipairs(aliases) do
        local index = alias[1]
        local found = taken[index]
        if found then
            others[#others + 1] = index
            others[#others + 1] = type(found) == 'string' and found or ids[found]
        else
            redis.call('SET', keys[alias[2]], ids[index], 'PX', alias[3])
        end
    end
    for _, part in ipairs(others) do
        answer[#answer + 1] = part
    end
    local remembered = answer[1] .. ':' .. count
    if #others > 0 then
        remembered = remembered .. ':' .. cmsgpack.pack(others)
    end
    redis.call('HSET', keys[2], number, remembered)
    redis.call('PEXPIRE', keys[2], expiry)
    if redis.call('HLEN', keys[2]) > keep then
        local oldest = tonumber(number) - keep
        for _, other in ipairs(redis.call('HKEYS', keys[2])) do
            if (tonumber(other) or oldest) <= oldest then
                redis.call('HDEL', keys[2], other)
            end
        end
    end
    return answer
end

register('submit', submit, {})
