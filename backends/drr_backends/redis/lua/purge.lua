-- Deletes dead letters.
--
-- KEYS    1 dead letters, 2 graves, then graves of organisations
-- ARGV    for each letter: its number, where the graves of its organisation are in KEYS
-- Returns how many there were.

local function purge(keys, args)
    local gone = 0
    for i = 1, math.min(#args, 2 * ITEMS), 2 do
        gone = gone + redis.call('HDEL', keys[1], args[i])
        redis.call('ZREM', keys[2], args[i])
        redis.call('ZREM', keys[tonumber(args[i + 1])], args[i])
    end
    return gone
end

register('purge', purge, {'allow-oom'})
