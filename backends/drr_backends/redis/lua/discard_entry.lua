-- Moves an entry of a pool's stream to which no lease belongs to the dead letters.
--
-- KEYS    1 leader, 2 leases, 3 pool stream, 4 workers, 5 dead letters, 6 graves, 7 graves of its organisation, 8 position
-- ARGV    1 the leader's token, 2 id of the entry, 3 token in the entry, 4 the dead letter's preamble (opaque)
-- Returns 1, or 0 if the entry is gone or has its lease; refuses NOTLEADER.

local function discard_entry(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return refuse('NOTLEADER', 'another token leads')
    end
    local found = redis.call('XRANGE', keys[3], args[2], args[2])[1]
    local record = redis.call('HGET', keys[2], args[3])
    if not found or (record and parse_lease(record) == args[2]) then
        return 0
    end
    local bad = wrong_type(keys, 'hash', 5, 5) or wrong_type(keys, 'zset', 6, 7) or wrong_type(keys, 'hash', 8, 8)
    if bad then
        return refuse('BADCALL', bad .. ' has the wrong type')
    end

    local frame = ''
    for i = 1, #found[2], 2 do
        if found[2][i] == 'frame' then
            frame = found[2][i + 1]
        end
    end
    bury(keys[8], keys[5], keys[6], keys[7], args[4] .. frame)
    redis.call('XACK', keys[3], GROUP, args[2])
    redis.call('XDEL', keys[3], args[2])
    sweep_consumers(keys[3], keys[4])
    return 1
end

register('discard_entry', discard_entry, {'allow-oom'})
