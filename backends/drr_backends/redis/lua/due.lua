-- Reads delayed jobs that are due, earliest first, without payloads.
--
-- KEYS    1 due, 2 delayed
-- ARGV    1 time until which (seconds), 2 most jobs
-- Returns when the next one after them is due ('' for none), then for each job: its sequence, and its value up to the
--         header. A due time without a job is removed.

local function due(keys, args)
    local limit = math.min(tonumber(args[2]), ITEMS)
    local found = redis.call('ZRANGEBYSCORE', keys[1], '-inf', args[1], 'LIMIT', 0, limit)
    local answer = {''}
    for _, packed in ipairs(found) do
        local name, frame = parse_delayed(redis.call('HGET', keys[2], packed))
        if frame then
            answer[#answer + 1] = packed
            answer[#answer + 1] = name .. '\n' .. visible(frame)
        else
            redis.call('ZREM', keys[1], packed)
        end
    end
    local after = redis.call('ZRANGE', keys[1], (#answer - 1) / 2, (#answer - 1) / 2, 'WITHSCORES')
    answer[1] = after[2] or ''
    return answer
end

register('due', due, {'allow-oom'})
