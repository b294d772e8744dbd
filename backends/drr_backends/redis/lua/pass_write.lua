-- The second half of a commit: everything is written. See commit.lua for `blob` and KEYS.

local REQUEUE, DISPATCH, POSTPONE, REVIVAL = pass.REQUEUE, pass.DISPATCH, pass.POSTPONE, pass.REVIVAL

-- Adds the dispatched frames to their pools. These writes come first, because a stream whose ids are used up
-- refuses: then they are taken back, and nothing has happened.
local function write_dispatches(keys, dispatches, frames)
    local ids = {}
    for n, frame in ipairs(frames) do
        local i = (n - 1) * DISPATCH + 1
        local pool = keys[dispatches[i + 1]]
        local id = redis.pcall('XADD', pool, '*', 'token', dispatches[i + 3], 'attempt', dispatches[i + 4], 'frame', frame)
        if type(id) ~= 'string' then
            for m = 1, n - 1 do
                redis.call('XDEL', keys[dispatches[(m - 1) * DISPATCH + 2]], ids[m])
            end
            return nil, refuse('BADCALL', pool .. ' takes no entry: ' .. id.err)
        end
        ids[n] = id
    end
    return ids
end

local function write_leases(keys, blob, records, ids)
    local key = keys[3]
    local gone, changed, charged = {}, {}, {}
    local function finish(token)
        local _, head = parse_lease(records[token])
        gone[#gone + 1] = token
        gone[#gone + 1] = head and running(string.sub(head, 1, 8))
    end
    for i = 1, #blob[2], 2 do
        finish(blob[2][i])
    end
    for i = 1, #blob[6], REQUEUE do
        finish(blob[6][i])
    end
    for i = 1, #blob[15], POSTPONE do
        finish(blob[15][i])
    end
    for i = 1, #blob[9], 2 do
        charged[blob[9][i]] = blob[9][i + 1]
    end
    local dispatches, at = blob[8], 0
    for n, id in ipairs(ids) do
        local i = (n - 1) * DISPATCH + 1
        local head, token = dispatches[i + 2], dispatches[i + 3]
        changed[at + 1] = token
        changed[at + 2] = id .. ' ' .. head .. (charged[token] or dispatches[i + 5])
        changed[at + 3] = running(string.sub(head, 1, 8))
        changed[at + 4] = token
        at = at + 4
    end
    for token, lease in pairs(charged) do
        if records[token] then
            local _, _, filled = parse_lease(records[token])
            changed[#changed + 1] = token
            changed[#changed + 1] = string.sub(records[token], 1, filled or 0) .. lease
        end
    end
    each_chunk('HDEL', key, gone)
    if redis.call('EXISTS', keys[16]) == 1 then
        each_chunk('HDEL', keys[16], gone)
    end
    each_chunk('HSET', key, changed)
end

-- Acknowledges and deletes the pool entries of all leases that end.
local function write_acknowledgements(keys, blob, records)
    local ids = {}
    local function add(token, pool)
        local id = parse_lease(records[token])
        if id then
            ids[pool] = ids[pool] or {}
            table.insert(ids[pool], id)
        end
    end
    for i = 1, #blob[2], 2 do
        add(blob[2][i], blob[2][i + 1])
    end
    for i = 1, #blob[6], REQUEUE do
        add(blob[6][i], blob[6][i + 1])
    end
    for i = 1, #blob[15], POSTPONE do
        add(blob[15][i], blob[15][i + 1])
    end
    for pool, list in pairs(ids) do
        redis.call('XACK', keys[pool], GROUP, unpack(list))
        redis.call('XDEL', keys[pool], unpack(list))
    end
end

local function write_reply(key, ids, limits)
    redis.call('XADD', key, 'MAXLEN', '~', limits[1], '*', 'jobs', ids)
    redis.call('PEXPIRE', key, limits[2])
end

-- Outcomes and replies, those of jobs that could not be put back included; returns the tokens of these.
local function write_outcomes(keys, blob, found)
    local limits, outcomes, replies = blob[14], blob[3], blob[5]
    for i = 1, #outcomes, 3 do
        redis.call('SET', keys[outcomes[i]], outcomes[i + 2], 'PX', outcomes[i + 1])
    end
    for i = 1, #replies, 2 do
        write_reply(keys[replies[i]], replies[i + 1], limits)
    end
    local tokens = {}
    local function give_up(items, i, from, head)
        tokens[#tokens + 1] = items[i]
        local project, micros = items[from + 7], items[from + 8]
        for _, tenant in ipairs({project, string.match(project, '^[^/]+')}) do
            for _, change in ipairs({tenant, -1, tenant .. '#', -micros}) do
                table.insert(blob[22], change)
            end
        end
        table.insert(found.letters, {items[from] .. head, items[from + 6]})
        if items[from + 1] > 0 then
            redis.call('SET', keys[items[from + 1]], items[from + 3], 'PX', items[from + 2])
        end
        if items[from + 4] > 0 then
            write_reply(keys[items[from + 4]], items[from + 5], limits)
        end
    end
    for i, head in pairs(found.lost) do
        give_up(blob[6], i, i + 6, head)
    end
    for i, head in pairs(found.lost_postpones) do
        give_up(blob[15], i, i + 7, head)
    end
    return tokens
end

local function write_delayed(keys, blob, found)
    local gone = {}
    for packed in pairs(found.delayed) do
        gone[#gone + 1] = packed
    end
    each_chunk('HDEL', keys[13], gone)
    each_chunk('ZREM', keys[12], gone)
    local postpones = blob[15]
    for i, frame in pairs(found.postponed) do
        local packed = string.sub(frame, 1, 8)
        redis.call('HSET', keys[13], packed, postpones[i + 2] .. '\n' .. frame)
        redis.call('ZADD', keys[12], string.format('%.17g', postpones[i + 3]), packed)
    end
end

local function write_revivals(keys, revivals)
    for i = 1, #revivals, REVIVAL do
        redis.call('HDEL', keys[9], revivals[i])
        redis.call('ZREM', keys[15], revivals[i])
        redis.call('ZREM', keys[revivals[i + 4]], revivals[i])
        if revivals[i + 5] > 0 then
            redis.call('DEL', keys[revivals[i + 5]])
        end
    end
end

-- Notes which entries of a lane are put back, and how many.
local function write_back(key, name, lane, struck)
    local change, gone, come = #lane.pushed - #lane.gone, {}, {}
    for _, frame in ipairs(lane.pushed) do
        come[#come + 1] = '#' .. string.sub(frame, 1, 8)
        come[#come + 1] = struct.unpack('>I2', frame, 9) .. ' ' .. name
    end
    each_chunk('HSET', key, come)
    for _, packed in ipairs(lane.gone) do
        gone[#gone + 1] = '#' .. packed
    end
    for packed, where in pairs(struck) do
        if flags_of(where[2]) % 2 == RETURNED then
            gone[#gone + 1] = '#' .. packed
        end
    end
    if change ~= 0 and redis.call('HINCRBY', key, name, change) == 0 then
        gone[#gone + 1] = name
    end
    each_chunk('HDEL', key, gone)
end

local function write_lanes(keys, lanes, struck, prefix)
    local filled, emptied = {}, {}
    for number, lane in pairs(lanes) do
        local key, strikes = keys[number], struck[number] or {}
        local name = string.sub(key, prefix)
        for _, where in pairs(strikes) do
            redis.call('LSET', key, where[1], where[2])
        end
        if #lane.pushed > 0 then
            redis.call('LPUSH', key, unpack(lane.pushed))
        end
        if lane.taken > 0 then
            redis.call('LTRIM', key, lane.taken, -1)
        end
        if lane.left == 0 then
            emptied[#emptied + 1] = name
        elseif #lane.pushed > 0 then
            filled[#filled + 1] = name
        end
        if #lane.pushed > 0 or #lane.gone > 0 or next(strikes) then
            write_back(keys[14], name, lane, strikes)
        end
    end
    each_chunk('SREM', keys[4], emptied)
    each_chunk('SADD', keys[4], filled)
end

local function write_position(keys, position)
    redis.call('HSET', keys[2], 'events', position[1], 'wake', position[2], 'requests', position[3])
    for i, key in ipairs({keys[5], keys[6], keys[11]}) do
        if position[3 + i] ~= '' then
            redis.call('XTRIM', key, 'MINID', position[3 + i])
        end
    end
end

local function forget_workers(keys, forgotten, pools)
    for i = 1, #forgotten, 2 do
        local name = forgotten[i]
        if redis.call('HGET', keys[10], name .. ':incarnation') == forgotten[i + 1] then
            redis.call('HDEL', keys[10], name .. ':incarnation', name .. ':shape', name .. ':held', name .. ':renewals')
        end
    end
    if #forgotten > 0 then
        for i = pass.FIXED + 1, pass.FIXED + pools do
            sweep_consumers(keys[i], keys[10])
        end
    end
end

-- Adds to counters, and drops those that come to nothing.
local function write_depth(key, changes)
    for i = 1, #changes, 2 do
        if redis.call('HINCRBY', key, changes[i], changes[i + 1]) == 0 then
            redis.call('HDEL', key, changes[i])
        end
    end
end

local function write_usage(keys, usage, expiry)
    local touched = {}
    for i = 1, #usage, 3 do
        redis.call('HINCRBY', keys[usage[i]], usage[i + 1], usage[i + 2])
        touched[usage[i]] = true
    end
    for place in pairs(touched) do
        redis.call('PEXPIRE', keys[place], expiry)
    end
end

local function write_histories(keys, histories, length, expiry)
    local records = {}
    for i = 1, #histories, 2 do
        records[histories[i]] = records[histories[i]] or {}
        table.insert(records[histories[i]], histories[i + 1])
    end
    for place, found in pairs(records) do
        each_chunk('LPUSH', keys[place], found)
        redis.call('LTRIM', keys[place], 0, length - 1)
        redis.call('PEXPIRE', keys[place], expiry)
    end
end

local function write_settings(keys, settings, changes, most)
    if settings[1] then
        redis.call('SET', keys[8], settings[1])
        redis.call('DEL', keys[21])
        table.remove(settings, 1)
        each_chunk('HSET', keys[21], settings)
    end
    if #changes > 0 then
        each_chunk('LPUSH', keys[19], changes)
        redis.call('LTRIM', keys[19], 0, most - 1)
    end
end

local function write_stops(keys, tokens, most)
    for _, token in ipairs(tokens) do
        if redis.call('HEXISTS', keys[3], token) == 1 then
            redis.call('HSET', keys[16], token, '1')
            redis.call('XADD', keys[17], 'MAXLEN', '~', most, '*', 'token', token)
        end
    end
end

function pass.write(keys, blob, found)
    local limits = blob[14]
    local ids, refusal = write_dispatches(keys, blob[8], found.heads.frames)
    if not ids then
        return nil, refusal
    end
    write_leases(keys, blob, found.records, ids)
    write_acknowledgements(keys, blob, found.records)
    write_revivals(keys, blob[17]) -- before the outcomes: what comes back may end in the same pass
    local lost = write_outcomes(keys, blob, found)
    write_delayed(keys, blob, found)
    for _, letter in ipairs(found.letters) do
        bury(keys[2], keys[9], keys[15], keys[letter[2]], letter[1])
    end
    write_lanes(keys, found.heads.lanes, found.struck, limits[3])
    each_chunk('HSET', keys[7], blob[10])
    each_chunk('HDEL', keys[7], blob[11])
    each_chunk('HSET', keys[18], blob[24])
    each_chunk('HDEL', keys[18], blob[25])
    write_settings(keys, blob[12], blob[26], limits[7])
    write_histories(keys, blob[20], limits[4], limits[5])
    write_usage(keys, blob[21], limits[6])
    write_depth(keys[20], blob[22])
    write_stops(keys, blob[23], limits[8])
    forget_workers(keys, blob[13], limits[9])
    write_position(keys, blob[1])
    return lost
end
