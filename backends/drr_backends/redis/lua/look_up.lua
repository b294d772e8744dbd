-- Finds out where jobs stand, without an index of them.
--
-- KEYS    1 leases, 2 delayed, 3 back, then the outcomes, one per job, then the lanes, each once
-- ARGV    1 number of jobs, 2 length of what is before the name in a lane's key, then for each job: its sequence as u64
--         big-endian, number of its lane (from 1)
-- Returns for each job a pair: 'outcome' and the record, 'running' and the lease record, 'delayed' and its value up to
--         the header, 'queued' and the number of attempts so far, or 'unknown' and ''.

-- The number of a lane's first fresh entry, or nothing.
local function first_fresh(lane, back, name)
    local at = tonumber(redis.call('HGET', back, name) or 0)
    for _ = 1, ITEMS do
        local entry = redis.call('LINDEX', lane, at)
        if not entry then
            return nil
        elseif head_length(entry) then
            return (struct.unpack('>I8', entry))
        end
        at = at + 1 -- anybody's bytes, which must not hide the jobs behind them
    end
end

local function look_up(keys, args)
    local count, prefix = tonumber(args[1]), tonumber(args[2])
    if not count or count > ITEMS then
        return refuse('BADCALL', 'a look-up holds at most ' .. ITEMS .. ' jobs')
    end
    local fresh, answers = {}, {}
    for i = 1, count do
        local packed, lane = args[2 * i + 1], tonumber(args[2 * i + 2])
        local outcome = redis.call('GET', keys[3 + i])
        local token = not outcome and redis.call('HGET', keys[1], running(packed))
        local lease = token and redis.call('HGET', keys[1], token)
        local name, frame = parse_delayed(not (outcome or lease) and redis.call('HGET', keys[2], packed))
        if outcome then
            answers[i] = {'outcome', outcome}
        elseif lease then
            answers[i] = {'running', lease}
        elseif frame then
            answers[i] = {'delayed', name .. '\n' .. visible(frame)}
        else
            local key = keys[3 + count + lane]
            local lane_name = string.sub(key, prefix)
            local attempts = put_back_attempts(keys[3], lane_name, packed)
            if attempts then
                answers[i] = {'queued', attempts}
            else
                if fresh[lane] == nil then
                    fresh[lane] = first_fresh(key, keys[3], lane_name) or false
                end
                local known = fresh[lane] and fresh[lane] <= struct.unpack('>I8', packed)
                answers[i] = known and {'queued', '0'} or {'unknown', ''}
            end
        end
    end
    return answers
end

register('look_up', look_up, {'no-writes'})
