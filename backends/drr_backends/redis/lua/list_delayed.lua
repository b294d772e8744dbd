-- Lists delayed jobs in order of due time and number, from behind a due time and number on.
--
-- KEYS    1 due, 2 delayed
-- ARGV    1 due time, 2 number: only what comes after them; 3 most jobs
-- Returns for each job: its number, its due time as a string, and its value up to the header as `locate` shows it ('' if
--         there is none).

-- How many jobs come before or are the given one. Ties are common: a batch may be due at one moment.
local function passed(key, score, number)
    local function is_passed(at)
        local found = redis.call('ZRANGE', key, at, at, 'WITHSCORES')
        if #found == 0 then
            return false
        end
        local its_score = tonumber(found[2])
        local its_number = #found[1] == 8 and struct.unpack('>I8', found[1]) or 0
        return its_score < score or (its_score == score and its_number <= number)
    end
    local low, high = 0, 1
    while is_passed(high - 1) do
        low, high = high, 2 * high
    end
    while low < high do
        local middle = math.floor((low + high) / 2)
        if is_passed(middle) then
            low = middle + 1
        else
            high = middle
        end
    end
    return low
end

local function list_delayed(keys, args)
    local score, number, count = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    if not count or count < 1 or count > ITEMS then
        return refuse('BADCALL', 'a listing looks at 1 to ' .. ITEMS .. ' jobs')
    end
    local from = passed(keys[1], score, number)
    local found, answers = redis.call('ZRANGE', keys[1], from, from + count - 1, 'WITHSCORES'), {}
    for i = 1, #found, 2 do
        local name, frame = parse_delayed(redis.call('HGET', keys[2], found[i]))
        answers[#answers + 1] = #found[i] == 8 and string.format('%.0f', (struct.unpack('>I8', found[i]))) or '0'
        answers[#answers + 1] = found[i + 1]
        answers[#answers + 1] = frame and name .. '\n' .. visible(frame) or ''
    end
    return answers
end

register('list_delayed', list_delayed, {'no-writes'})
