-- The first half of a commit: everything is read and checked, nothing is written. See commit.lua for `blob` and KEYS.

local FIXED, REQUEUE, REMOVAL, DISPATCH, POSTPONE, REVIVAL = 21, 15, 4, 6, 16, 6
pass.FIXED, pass.REQUEUE, pass.REMOVAL, pass.DISPATCH = FIXED, REQUEUE, REMOVAL, DISPATCH
pass.POSTPONE, pass.REVIVAL = POSTPONE, REVIVAL

-- Returns an error reply, or nothing if the types of all keys allow every write.
local function check_types(keys, counts)
    local at, ranges = FIXED, {}
    for count in string.gmatch(counts, '%d+') do
        ranges[#ranges + 1] = {at + 1, at + count}
        at = at + count
    end
    local function wrong(kind, range)
        return wrong_type(keys, kind, ranges[range][1], ranges[range][2])
    end
    local bad = wrong_type(keys, 'hash', 1, 3) or wrong_type(keys, 'set', 4, 4) or wrong_type(keys, 'stream', 5, 6)
        or wrong_type(keys, 'hash', 7, 7) or wrong_type(keys, 'hash', 9, 10) or wrong_type(keys, 'stream', 11, 11)
        or wrong_type(keys, 'zset', 12, 12) or wrong_type(keys, 'hash', 13, 14) or wrong_type(keys, 'zset', 15, 15)
        or wrong_type(keys, 'hash', 16, 16) or wrong_type(keys, 'stream', 17, 17) or wrong_type(keys, 'hash', 18, 18)
        or wrong_type(keys, 'list', 19, 19) or wrong_type(keys, 'hash', 20, 21)
        or wrong('stream', 1) or wrong('stream', 4) or wrong('zset', 5) or wrong('list', 6) or wrong('hash', 7)
    return bad and refuse('BADCALL', bad .. ' has the wrong type')
end

local function check_counts(blob)
    local most = {[2] = 2, [6] = REQUEUE, [7] = REMOVAL, [8] = DISPATCH, [15] = POSTPONE, [16] = 3, [17] = REVIVAL,
        [18] = 2, [19] = 2, [23] = 1, [26] = 1}
    for place, width in pairs(most) do
        if #blob[place] > width * ITEMS then
            return refuse('BADCALL', 'a commit holds at most ' .. ITEMS .. ' items of a kind')
        end
    end
end

-- The records of all leases the pass names, or nil and an error reply.
local function read_leases(key, blob)
    local tokens, ended, fresh = {}, {}, {}
    local function named_twice(token)
        local was = ended[token]
        ended[token] = true
        tokens[#tokens + 1] = token
        return was
    end
    for i = 1, #blob[2], 2 do
        if named_twice(blob[2][i]) then
            return nil, refuse('REFUSED', 'lease ' .. blob[2][i] .. ' is ended twice')
        end
    end
    for i = 1, #blob[6], REQUEUE do
        if named_twice(blob[6][i]) then
            return nil, refuse('REFUSED', 'lease ' .. blob[6][i] .. ' is ended twice')
        end
    end
    for i = 1, #blob[15], POSTPONE do
        if named_twice(blob[15][i]) then
            return nil, refuse('REFUSED', 'lease ' .. blob[15][i] .. ' is ended twice')
        end
    end
    local dispatches = blob[8]
    for i = 4, #dispatches, DISPATCH do
        local token = dispatches[i]
        if ended[token] or fresh[token] then
            return nil, refuse('REFUSED', 'token ' .. token .. ' is dispatched though it is used')
        end
        fresh[token] = true
        tokens[#tokens + 1] = token
    end
    for i = 1, #blob[9], 2 do
        tokens[#tokens + 1] = blob[9][i]
    end
    local records = get_fields(key, tokens)
    for token in pairs(ended) do
        if not records[token] then
            return nil, refuse('REFUSED', 'there is no lease ' .. token)
        end
    end
    for token in pairs(fresh) do
        if records[token] then
            return nil, refuse('REFUSED', 'lease ' .. token .. ' is dispatched though it lives')
        end
    end
    for i = 1, #blob[9], 2 do
        local token = blob[9][i]
        if ended[token] or not (records[token] or fresh[token]) then
            return nil, refuse('REFUSED', 'there is no lease ' .. token .. ' to charge')
        end
    end
    return records
end

-- The frame of a lease's pool entry, or nil if it is gone or is not the frame of this job.
local function frame_of(pool, id, head)
    local found = id and redis.call('XRANGE', pool, id, id)[1]
    local fields = found and found[2]
    for i = 1, fields and #fields or 0, 2 do
        if fields[i] == 'frame' and string.sub(fields[i + 1], 1, #head) == head then
            return fields[i + 1]
        end
    end
end

pass.frame_of = frame_of

-- The frames of the delayed jobs that mature or go: sequence to frame; or nil and an error reply.
local function read_delayed(key, matures, dropped)
    local wanted, frames = {}, {}
    for i = 1, #matures, 3 do
        wanted[#wanted + 1] = {matures[i], matures[i + 1]}
    end
    for i = 1, #dropped, 2 do
        wanted[#wanted + 1] = {dropped[i], dropped[i + 1]}
    end
    for _, item in ipairs(wanted) do
        local _, frame = parse_delayed(redis.call('HGET', key, item[1]))
        if not frame or frames[item[1]] or string.sub(frame, 1, #item[2]) ~= item[2] then
            return nil, refuse('REFUSED', 'a job is not delayed, or not as the commit says')
        end
        frames[item[1]] = frame
    end
    return frames
end

-- The frames of the dead that come back, in order; or nil and an error reply.
local function read_revivals(key, revivals)
    local frames, seen = {}, {}
    for i = 1, #revivals, REVIVAL do
        local letter = redis.call('HGET', key, revivals[i])
        local length = letter and #letter >= 12 and struct.unpack('>I4', letter, 9)
        local frame = length and string.sub(letter, 13 + length)
        local head = frame and head_length(frame)
        if not head or seen[revivals[i]] or string.sub(frame, 1, 8) ~= revivals[i + 2]
            or string.sub(frame, PREFIX + 1, head) ~= revivals[i + 3] then
            return nil, refuse('REFUSED', 'dead letter ' .. revivals[i] .. ' is gone, or is of another job')
        end
        seen[revivals[i]] = true
        frames[#frames + 1] = frame
    end
    return frames
end

-- What is put back: frames per lane in order of the pushes; and the requeues that have lost their entry, as place to head.
local function read_pushes(keys, blob, records, delayed, revived)
    local pushes, lost = {}, {}
    local function push(lane, frame)
        pushes[lane] = pushes[lane] or {}
        table.insert(pushes[lane], frame)
    end
    for n, frame in ipairs(revived) do
        push(blob[17][(n - 1) * REVIVAL + 2], recount(frame, 0, 0, 0, RETURNED))
    end
    local matures = blob[16]
    for i = 1, #matures, 3 do
        local frame = delayed[matures[i]]
        push(matures[i + 2], string.sub(frame, 1, 14) .. struct.pack('>I2', RETURNED) .. string.sub(frame, 17))
    end
    local requeues = blob[6]
    for i = 1, #requeues, REQUEUE do
        local record = records[requeues[i]]
        local id, head = parse_lease(record)
        local frame = frame_of(keys[requeues[i + 1]], id, head)
        if frame then
            push(requeues[i + 2], recount(frame, requeues[i + 3], requeues[i + 4], requeues[i + 5], RETURNED))
        else
            lost[i] = head or record
        end
    end
    return pushes, lost
end

-- The frames of postponed jobs by place, and those that have lost their entry.
local function read_postpones(keys, postpones, records)
    local frames, lost = {}, {}
    for i = 1, #postpones, POSTPONE do
        local record = records[postpones[i]]
        local id, head = parse_lease(record)
        local frame = frame_of(keys[postpones[i + 1]], id, head)
        if frame then
            frames[i] = recount(frame, postpones[i + 4], postpones[i + 5], postpones[i + 6], 0)
        else
            lost[i] = head or record
        end
    end
    return frames, lost
end

-- Where the struck jobs stand: lane to sequence to {index, what stays}; or nil and an error reply.
local function read_strikes(keys, strikes, prefix)
    local struck = {}
    for i = 1, #strikes, 2 do
        local lane, head = strikes[i], strikes[i + 1]
        local packed = string.sub(head, 1, 8)
        struck[lane] = struck[lane] or {}
        local at, entry = find_in_lane(keys[lane], keys[14], string.sub(keys[lane], prefix), packed, true)
        if not entry or struck[lane][packed] or string.sub(entry, 1, #head) ~= head then
            return nil, refuse('REFUSED', 'a job does not wait in ' .. keys[lane] .. ', or not as the commit says')
        end
        local flags = struct.unpack('>I2', entry, 15) + STRUCK
        local rest = string.sub(entry, 1, 14) .. struct.pack('>I2', flags) .. struct.pack('>I4', 0)
        struck[lane][packed] = {at, rest}
    end
    return struck
end

-- The entries that removals and dispatches take, lane by lane from the head, checked against what they name.
local function read_heads(keys, removals, dispatches, pushes, struck)
    local needs, lanes = {}, {}
    for i = 1, #removals, REMOVAL do
        needs[removals[i]] = (needs[removals[i]] or 0) + 1
    end
    for i = 1, #dispatches, DISPATCH do
        needs[dispatches[i]] = (needs[dispatches[i]] or 0) + 1
    end
    for lane in pairs(pushes) do
        needs[lane] = needs[lane] or 0
    end
    for lane in pairs(struck) do
        needs[lane] = needs[lane] or 0
    end
    for lane, need in pairs(needs) do
        local pushed = pushes[lane] or {}
        local stored = {}
        local length = redis.call('LLEN', keys[lane])
        if need == #pushed + 1 then
            stored[1] = redis.call('LINDEX', keys[lane], 0)
        elseif need > #pushed then
            stored = redis.call('LRANGE', keys[lane], 0, need - #pushed - 1)
        end
        for i, entry in ipairs(stored) do
            local change = struck[lane] and struck[lane][string.sub(entry, 1, 8)]
            if change and change[1] == i - 1 then
                stored[i] = change[2]
            end
        end
        lanes[lane] = {pushed = pushed, stored = stored, left = length + #pushed, taken = 0, gone = {}}
    end
    local function take(number)
        local lane = lanes[number]
        lane.taken = lane.taken + 1
        lane.left = lane.left - 1
        local pushed = #lane.pushed
        local entry = lane.taken <= pushed and lane.pushed[pushed - lane.taken + 1] or lane.stored[lane.taken - pushed]
        local flags = entry and flags_of(entry) or 0
        if flags % 2 == RETURNED then
            table.insert(lane.gone, string.sub(entry, 1, 8))
        end
        return entry
    end
    local letters, frames = {}, {}
    for i = 1, #removals, REMOVAL do
        local entry, shown = take(removals[i]), removals[i + 1]
        -- What is left of a struck job is named by its number alone.
        local struck_one = entry and #shown == 8 and flags_of(entry) >= STRUCK and string.sub(entry, 1, 8) == shown
        if not entry or not (struck_one or visible(entry) == shown) then
            return nil, refuse('REFUSED', 'the head of ' .. keys[removals[i]] .. ' is not the entry to remove')
        end
        if removals[i + 2] ~= '' then
            letters[#letters + 1] = {removals[i + 2] .. entry, removals[i + 3]}
        end
    end
    for i = 1, #dispatches, DISPATCH do
        local head, entry = dispatches[i + 2], take(dispatches[i])
        if not entry or string.sub(entry, 1, #head) ~= head then
            return nil, refuse('REFUSED', 'the head of ' .. keys[dispatches[i]] .. ' is not the job to dispatch')
        end
        frames[#frames + 1] = entry
    end
    return {lanes = lanes, letters = letters, frames = frames}
end

-- Dead letters of settled attempts: the pool entry's frame or, if that is gone, what the lease knows.
local function read_graves(keys, graves, settlements, records, letters)
    for i = 1, #graves, 3 do
        local at = 2 * graves[i] - 1
        local record = records[settlements[at]]
        local id, head = parse_lease(record)
        local entry = frame_of(keys[settlements[at + 1]], id, head) or head or record
        letters[#letters + 1] = {graves[i + 1] .. entry, graves[i + 2]}
    end
end

function pass.read(keys, counts, blob)
    local found = {letters = {}}
    local refusal = check_counts(blob) or check_types(keys, counts)
    if refusal then
        return nil, refusal
    end
    found.records, refusal = read_leases(keys[3], blob)
    if not found.records then
        return nil, refusal
    end
    found.delayed, refusal = read_delayed(keys[13], blob[16], blob[18])
    if not found.delayed then
        return nil, refusal
    end
    local revived
    revived, refusal = read_revivals(keys[9], blob[17])
    if not revived then
        return nil, refusal
    end
    found.struck, refusal = read_strikes(keys, blob[19], blob[14][3])
    if not found.struck then
        return nil, refusal
    end
    local pushes
    pushes, found.lost = read_pushes(keys, blob, found.records, found.delayed, revived)
    found.postponed, found.lost_postpones = read_postpones(keys, blob[15], found.records)
    found.heads, refusal = read_heads(keys, blob[7], blob[8], pushes, found.struck)
    if not found.heads then
        return nil, refusal
    end
    read_graves(keys, blob[4], blob[2], found.records, found.letters)
    for _, letter in ipairs(found.heads.letters) do
        table.insert(found.letters, letter)
    end
    return found
end
