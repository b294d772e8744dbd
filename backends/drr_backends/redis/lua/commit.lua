-- Applies one pass of the leader, all or nothing.
--
-- KEYS    1 leader, 2 position, 3 leases, 4 active, 5 events, 6 wake, 7 nodes, 8 settings, 9 dead letters,
--         10 workers, then pool streams, lanes, outcomes and reply streams in this order
-- ARGV    1 token, 2 pass number, 3 numbers of pool streams, lanes, outcomes, reply streams: 'p l o r'
--         4 msgpack, an array of arrays. `pool`, `lane`, `outcome` and `reply` are places in KEYS (0: none).
--           1 position     events, wake, lowest event id to keep, lowest announcement id to keep ('': all)
--           2 settlements  (token, pool) ...
--           3 outcomes     (outcome, milliseconds to keep, record) ...
--           4 graves       (number of the settlement, preamble) ...
--           5 replies      (reply, job ids with line breaks between them) ...
--           6 requeues     (token, pool, lane, attempts, losses, preamble, outcome, milliseconds, record, reply,
--                          job id) ...
--                          what follows the losses is for the case that the pool entry is gone
--           7 burials      (lane, what a peek showed, preamble) ...
--           8 dispatches   (lane, pool, head, token, attempt, lease) ...
--           9 charges      (token, lease) ...
--          10 nodes to set (field, record) ...
--          11 nodes to forget (field) ...
--          12 settings     one record, or none
--          13 workers to forget (name, incarnation) ...
--          14 limits       most entries of a reply stream, milliseconds to keep one, where in the key of
--                          a lane its name begins (from 1)
-- Returns the tokens whose jobs were buried because their pool entries were gone; refuses NOTLEADER, REFUSED
--         or BADCALL, and then nothing was written.
--
-- Leases and preambles are opaque: a lease record is made of entry id, head and lease; a dead letter is its
-- preamble followed by the entry. Applied in the order settlements,
-- requeues, burials, dispatches; read and checked in the same order, as if each had been applied already.

local FIXED, REQUEUE, DISPATCH = 10, 11, 6

-- Returns an error reply, or nothing if the types of all keys allow every write.
local function check_types(keys, counts)
    local pools, lanes, outcomes, replies = string.match(counts, '^(%d+) (%d+) (%d+) (%d+)$')
    pools = FIXED + pools
    local first_reply = pools + lanes + outcomes + 1
    local bad = wrong_type(keys, 'hash', 1, 3) or wrong_type(keys, 'set', 4, 4) or wrong_type(keys, 'stream', 5, 6)
        or wrong_type(keys, 'hash', 7, 7) or wrong_type(keys, 'list', 9, 9) or wrong_type(keys, 'hash', 10, 10)
        or wrong_type(keys, 'stream', FIXED + 1, pools)
        or wrong_type(keys, 'stream', first_reply, first_reply + replies - 1)
    return bad and refuse('BADCALL', bad .. ' has the wrong type')
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

-- What the requeues push: frames per lane in order of the pushes; and those that have lost their entry, as
-- place in `requeues` to head.
local function read_requeues(keys, requeues, records)
    local pushes, lost = {}, {}
    for i = 1, #requeues, REQUEUE do
        local lane, record = requeues[i + 2], records[requeues[i]]
        local id, head = parse_lease(record)
        local frame = frame_of(keys[requeues[i + 1]], id, head)
        if frame then
            local counts = struct.pack('>I2I2', requeues[i + 3], requeues[i + 4])
            pushes[lane] = pushes[lane] or {}
            table.insert(pushes[lane], string.sub(frame, 1, 8) .. counts .. string.sub(frame, 13))
        else
            lost[i] = head or record
        end
    end
    return pushes, lost
end

-- The entries that burials and dispatches take, lane by lane from the head, checked against what they name.
local function read_heads(keys, burials, dispatches, pushes)
    local needs, lanes = {}, {}
    for i = 1, #burials, 3 do
        needs[burials[i]] = (needs[burials[i]] or 0) + 1
    end
    for i = 1, #dispatches, DISPATCH do
        needs[dispatches[i]] = (needs[dispatches[i]] or 0) + 1
    end
    for lane in pairs(pushes) do
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
        lanes[lane] = {pushed = pushed, stored = stored, left = length + #pushed, taken = 0}
    end
    local function take(number)
        local lane = lanes[number]
        lane.taken = lane.taken + 1
        lane.left = lane.left - 1
        local pushed = #lane.pushed
        if lane.taken <= pushed then
            return lane.pushed[pushed - lane.taken + 1]
        end
        return lane.stored[lane.taken - pushed]
    end
    local buried, frames = {}, {}
    for i = 1, #burials, 3 do
        local entry = take(burials[i])
        if not entry or visible(entry) ~= burials[i + 1] then
            return nil, refuse('REFUSED', 'the head of ' .. keys[burials[i]] .. ' is not the entry to bury')
        end
        buried[#buried + 1] = burials[i + 2] .. entry
    end
    for i = 1, #dispatches, DISPATCH do
        local head, entry = dispatches[i + 2], take(dispatches[i])
        if not entry or string.sub(entry, 1, #head) ~= head then
            return nil, refuse('REFUSED', 'the head of ' .. keys[dispatches[i]] .. ' is not the job to dispatch')
        end
        frames[#frames + 1] = entry
    end
    return {lanes = lanes, buried = buried, frames = frames}
end

-- Dead letters of settled attempts: the pool entry's frame or, if that is gone, what the lease knows.
local function read_graves(keys, graves, settlements, records, letters)
    for i = 1, #graves, 2 do
        local at = 2 * graves[i] - 1
        local record = records[settlements[at]]
        local id, head = parse_lease(record)
        letters[#letters + 1] = graves[i + 1] .. (frame_of(keys[settlements[at + 1]], id, head) or head or record)
    end
end

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

local function write_leases(key, blob, records, ids)
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
    for pool, list in pairs(ids) do
        redis.call('XACK', keys[pool], GROUP, unpack(list))
        redis.call('XDEL', keys[pool], unpack(list))
    end
end

local function write_reply(key, ids, limits)
    redis.call('XADD', key, 'MAXLEN', '~', limits[1], '*', 'jobs', ids)
    redis.call('PEXPIRE', key, limits[2])
end

-- Outcomes and replies, those of lost requeues included; returns the tokens of these.
local function write_outcomes(keys, blob, lost, letters)
    local limits, outcomes, replies, requeues = blob[14], blob[3], blob[5], blob[6]
    for i = 1, #outcomes, 3 do
        redis.call('SET', keys[outcomes[i]], outcomes[i + 2], 'PX', outcomes[i + 1])
    end
    for i = 1, #replies, 2 do
        write_reply(keys[replies[i]], replies[i + 1], limits)
    end
    local tokens = {}
    for i, head in pairs(lost) do
        tokens[#tokens + 1] = requeues[i]
        letters[#letters + 1] = requeues[i + 5] .. head
        if requeues[i + 6] > 0 then
            redis.call('SET', keys[requeues[i + 6]], requeues[i + 8], 'PX', requeues[i + 7])
        end
        if requeues[i + 9] > 0 then
            write_reply(keys[requeues[i + 9]], requeues[i + 10], limits)
        end
    end
    return tokens
end

local function write_lanes(keys, lanes, prefix)
    local filled, emptied = {}, {}
    for number, lane in pairs(lanes) do
        local key = keys[number]
        if #lane.pushed > 0 then
            redis.call('LPUSH', key, unpack(lane.pushed))
        end
        if lane.taken > 0 then
            redis.call('LTRIM', key, lane.taken, -1)
        end
        if lane.left == 0 then
            emptied[#emptied + 1] = string.sub(key, prefix)
        elseif #lane.pushed > 0 then
            filled[#filled + 1] = string.sub(key, prefix)
        end
    end
    each_chunk('SREM', keys[4], emptied)
    each_chunk('SADD', keys[4], filled)
end

local function write_position(keys, position)
    redis.call('HSET', keys[2], 'events', position[1], 'wake', position[2])
    if position[3] ~= '' then
        redis.call('XTRIM', keys[5], 'MINID', position[3])
    end
    if position[4] ~= '' then
        redis.call('XTRIM', keys[6], 'MINID', position[4])
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
        for i = FIXED + 1, FIXED + pools do
            sweep_consumers(keys[i], keys[10])
        end
    end
end

local function commit(keys, args)
    local token, number = args[1], tonumber(args[2])
    local leader = redis.call('HMGET', keys[1], 'token', 'passes')
    if token == '' or leader[1] ~= token then
        return refuse('NOTLEADER', 'another token leads')
    end
    if tonumber(leader[2]) ~= number - 1 then
        return refuse('NOTLEADER', 'pass ' .. args[2] .. ' does not follow pass ' .. tostring(leader[2]))
    end
    local blob = cmsgpack.unpack(args[4])
    if #blob[2] > 2 * ITEMS or #blob[6] > REQUEUE * ITEMS or #blob[7] > 3 * ITEMS or #blob[8] > DISPATCH * ITEMS then
        return refuse('BADCALL', 'a commit holds at most ' .. ITEMS .. ' items of a kind')
    end
    local refusal = check_types(keys, args[3])
    if refusal then
        return refusal
    end
    local records, heads, ids
    records, refusal = read_leases(keys[3], blob)
    if not records then
        return refusal
    end
    local pushes, lost = read_requeues(keys, blob[6], records)
    heads, refusal = read_heads(keys, blob[7], blob[8], pushes)
    if not heads then
        return refusal
    end
    local letters = {}
    read_graves(keys, blob[4], blob[2], records, letters)

    ids, refusal = write_dispatches(keys, blob[8], heads.frames)
    if not ids then
        return refusal
    end
    write_leases(keys[3], blob, records, ids)
    write_acknowledgements(keys, blob, records)
    local lost_tokens = write_outcomes(keys, blob, lost, letters)
    for _, letter in ipairs(heads.buried) do
        letters[#letters + 1] = letter
    end
    each_chunk('RPUSH', keys[9], letters)
    write_lanes(keys, heads.lanes, blob[14][3])
    each_chunk('HSET', keys[7], blob[10])
    each_chunk('HDEL', keys[7], blob[11])
    if blob[12][1] then
        redis.call('SET', keys[8], blob[12][1])
    end
    forget_workers(keys, blob[13], tonumber(string.match(args[3], '^%d+')))
    write_position(keys, blob[1])
    redis.call('HINCRBY', keys[1], 'renewals', 1)
    redis.call('HSET', keys[1], 'passes', number)
    return lost_tokens
end

register('commit', commit, {'allow-oom'})
