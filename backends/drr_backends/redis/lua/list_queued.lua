-- Lists what waits in some lanes, from a place that stays the same place while the lanes move.
--
-- Put-back entries stand at the head of a lane and come and go there: each is counted from where they end, so that its
-- number stays. Fresh entries stand behind them in order of their jobs' numbers.
--
-- KEYS    1 back, then the lanes
-- ARGV    1 most entries to look at, 2 length of what is before the name in a lane's key, then for each lane where to
--         begin: 'b' and which of the put-back entries (counted from 1 where they end, so the head has the highest number),
--         or 'f' and the number above which fresh entries are wanted
-- Returns for each lane that was looked at an array: place of the first entry (from 0), number of put-back entries, then
--         the entries as `peek` shows them. Lanes that come after what was looked at are left out.

-- Where the first frame with a number above `number` stands, from `low` on; the lane's length if there is none.
local function first_above(lane, low, length, number)
    local high = length
    while low < high do
        local middle = math.floor((low + high) / 2)
        local at, entry = middle, redis.call('LINDEX', lane, middle)
        while at < high and not head_length(entry) do -- anybody's bytes, which say nothing of the order
            at = at + 1
            entry = at < high and redis.call('LINDEX', lane, at) or ''
        end
        if at < high and struct.unpack('>I8', entry) <= number then
            low = at + 1
        else
            high = middle
        end
    end
    while low < length and not head_length(redis.call('LINDEX', lane, low)) do
        low = low + 1
    end
    return low
end

local function list_queued(keys, args)
    local left, prefix = tonumber(args[1]), tonumber(args[2])
    if not left or left < 1 or left > ITEMS then
        return refuse('BADCALL', 'a listing looks at 1 to ' .. ITEMS .. ' entries')
    end
    local answers = {}
    for i = 2, #keys do
        if left == 0 then
            break
        end
        local lane, kind, number = keys[i], args[2 * i - 1], tonumber(args[2 * i])
        local returned = tonumber(redis.call('HGET', keys[1], string.sub(lane, prefix)) or 0)
        local length = redis.call('LLEN', lane)
        local at
        if kind == 'b' then
            at = math.max(0, returned - number)
        else
            at = first_above(lane, math.min(returned, length), length, number)
        end
        local answer = {at, returned}
        for _, entry in ipairs(redis.call('LRANGE', lane, at, at + left - 1)) do
            answer[#answer + 1] = visible(entry)
        end
        left = left - (#answer - 2)
        answers[#answers + 1] = answer
    end
    return answers
end

register('list_queued', list_queued, {'no-writes'})
