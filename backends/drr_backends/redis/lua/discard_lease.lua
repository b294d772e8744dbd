-- Moves a lease record that cannot be decoded to the dead letters.
--
-- KEYS    1 leader, 2 leases, 3 dead letters, 4 graves, 5 graves of the unknown organisation, 6 position
-- ARGV    1 the leader's token, 2 the record's field, 3 the dead letter's preamble (opaque)
-- Returns 1, or 0 if there is no such field; refuses NOTLEADER.

local function discard_lease(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return refuse('NOTLEADER', 'another token leads')
    end
    local record = redis.call('HGET', keys[2], args[2])
    if not record then
        return 0
    end
    local bad = wrong_type(keys, 'hash', 3, 3) or wrong_type(keys, 'zset', 4, 5) or wrong_type(keys, 'hash', 6, 6)
    if bad then
        return refuse('BADCALL', bad .. ' has the wrong type')
    end

    bury(keys[6], keys[3], keys[4], keys[5], args[3] .. string.sub(record, 1, HEADER_MAX))
    redis.call('HDEL', keys[2], args[2])
    local _, head = parse_lease(record)
    if head and redis.call('HGET', keys[2], running(string.sub(head, 1, 8))) == args[2] then
        redis.call('HDEL', keys[2], running(string.sub(head, 1, 8)))
    end
    return 1
end

register('discard_lease', discard_lease, {'allow-oom'})
