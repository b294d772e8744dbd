-- Renews a worker's record; a change of shape (slots, draining) is told to the dispatcher.
--
-- KEYS    1 workers, 2 event stream
-- ARGV    1 name, 2 incarnation, 3 shape, 4 held
-- Returns 1, or 0 if the record is not this incarnation's (any more); then nothing was written.

local function heartbeat(keys, args)
    local name = args[1]
    local found = redis.call('HMGET', keys[1], name .. ':incarnation', name .. ':shape')
    if found[1] ~= args[2] then
        return 0
    end
    if found[2] ~= args[3] then
        redis.call('XADD', keys[2], '*', 'worker', name)
        redis.call('HSET', keys[1], name .. ':shape', args[3])
    end
    redis.call('HSET', keys[1], name .. ':held', args[4])
    redis.call('HINCRBY', keys[1], name .. ':renewals', 1)
    return 1
end

register('heartbeat', heartbeat, {'allow-oom'})
