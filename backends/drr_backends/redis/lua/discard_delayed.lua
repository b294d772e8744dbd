-- Moves a delayed job that cannot be decoded to the dead letters. May be repeated.
--
-- KEYS    1 due, 2 delayed, 3 dead letters, 4 graves, 5 graves of its organisation, 6 position, 7 depth
-- ARGV    1 its sequence, 2 preamble, then fields of depth and by how much they change
-- Returns 1, or 0 if there is no such job.

local function discard_delayed(keys, args)
    local value = redis.call('HGET', keys[2], args[1])
    if not value then
        return 0
    end
    local bad = wrong_type(keys, 'hash', 3, 3) or wrong_type(keys, 'zset', 4, 5) or wrong_type(keys, 'hash', 6, 7)
    if bad then
        return refuse('BADCALL', bad .. ' has the wrong type')
    end

    local _, frame = parse_delayed(value)
    bury(keys[6], keys[3], keys[4], keys[5], args[2] .. (frame or value))
    redis.call('HDEL', keys[2], args[1])
    redis.call('ZREM', keys[1], args[1])
    for i = 3, #args, 2 do
        if redis.call('HINCRBY', keys[7], args[i], args[i + 1]) == 0 then
            redis.call('HDEL', keys[7], args[i])
        end
    end
    return 1
end

register('discard_delayed', discard_delayed, {'allow-oom'})
