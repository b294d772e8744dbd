-- Finds jobs that wait in their lanes or are delayed.
--
-- KEYS    1 delayed, 2 back, then the lanes
-- ARGV    1 length of what is before the name in a lane's key, then for each job: its sequence as u64 big-endian, number
--         of its lane (from 1; 0: only among the delayed)
-- Returns for each job a pair: 'delayed' or 'lane' and its value up to the header, or '' and ''. Of a delayed job the value
--         begins with its lane's name and a line break.

local function locate(keys, args)
    local answers = {}
    if #args > 2 * ITEMS + 1 then
        return refuse('BADCALL', 'at most ' .. ITEMS .. ' jobs are located at once')
    end
    for i = 2, #args, 2 do
        local packed, lane = args[i], tonumber(args[i + 1])
        local name, frame = parse_delayed(redis.call('HGET', keys[1], packed))
        local answer = {'', ''}
        if frame then
            answer = {'delayed', name .. '\n' .. visible(frame)}
        elseif lane > 0 then
            local key = keys[2 + lane]
            local _, entry = find_in_lane(key, keys[2], string.sub(key, tonumber(args[1])), packed, false)
            if entry then
                answer = {'lane', visible(entry)}
            end
        end
        answers[#answers + 1] = answer
    end
    return answers
end

register('locate', locate, {'no-writes'})
