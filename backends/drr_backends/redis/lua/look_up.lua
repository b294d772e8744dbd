-- Finds out where jobs stand, without an index of them.
--
-- KEYS    1 leases, 2... the outcomes, one per job, then the lanes, each once
-- ARGV    1 number of jobs, then for each job: its sequence as u64 big-endian, number of its lane (from 1)
-- Returns for each job a pair: 'outcome' and the record, 'running' and the lease record, 'queued' and the
--         number of attempts so far (0 for a fresh one), or 'unknown' and ''.

-- A lane's returned entries (sequence to attempts), and its first fresh sequence. There is no bound above: the
-- last entry may be anybody's bytes, and must not hide the jobs before it.
local function survey(lane)
    local head = {returned = {}}
    local length, at, step = redis.call('LLEN', lane), 0, 1
    while at < length and at < ITEMS and not head.fresh do
        for _, entry in ipairs(redis.call('LRANGE', lane, at, at + step - 1)) do
            if head_length(entry) then
                local sequence, attempts = struct.unpack('>I8I2', entry)
                if attempts == 0 then
                    head.fresh = sequence
                    break
                end
                head.returned[sequence] = attempts
            end
        end
        at, step = at + step, 32
    end
    return head
end

local function look_up(keys, args)
    local count = tonumber(args[1])
    if not count or count > ITEMS then
        return refuse('BADCALL', 'a look-up holds at most ' .. ITEMS .. ' jobs')
    end
    local surveys, answers = {}, {}
    for i = 1, count do
        local packed, lane = args[2 * i], tonumber(args[2 * i + 1])
        local outcome = redis.call('GET', keys[1 + i])
        local token = not outcome and redis.call('HGET', keys[1], running(packed))
        local lease = token and redis.call('HGET', keys[1], token)
        if outcome then
            answers[i] = {'outcome', outcome}
        elseif lease then
            answers[i] = {'running', lease}
        else
            surveys[lane] = surveys[lane] or survey(keys[1 + count + lane])
            local head, sequence = surveys[lane], struct.unpack('>I8', packed)
            if head.returned[sequence] then
                answers[i] = {'queued', tostring(head.returned[sequence])}
            elseif head.fresh and head.fresh <= sequence then
                answers[i] = {'queued', '0'}
            else
                answers[i] = {'unknown', ''}
            end
        end
    end
    return answers
end

register('look_up', look_up, {'no-writes'})
