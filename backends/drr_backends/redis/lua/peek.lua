-- Reads headers of lanes, no payloads.
--
-- KEYS    the lanes
-- ARGV    for each lane: offset, count
-- Returns for each lane an array: its length, then the entries (prefix and header; of an entry that is no
--         frame its first 4,096 bytes).

local function peek(keys, args)
    local total, windows = 0, {}
    for i, lane in ipairs(keys) do
        local offset, count = tonumber(args[2 * i - 1]), tonumber(args[2 * i])
        total = total + count
        if total > ITEMS then
            return refuse('BADCALL', 'a peek holds at most ' .. ITEMS .. ' headers')
        end
        local window = {redis.call('LLEN', lane)}
        if count == 1 and window[1] > offset then
            window[2] = visible(redis.call('LINDEX', lane, offset))
        elseif count > 0 and window[1] > offset then
            for j, entry in ipairs(redis.call('LRANGE', lane, offset, offset + count - 1)) do
                window[j + 1] = visible(entry)
            end
        end
        windows[i] = window
    end
    return windows
end

register('peek', peek, {'no-writes'})
