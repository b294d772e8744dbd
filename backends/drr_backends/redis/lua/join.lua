-- Registers a worker's new incarnation, makes its pools' groups and tells the dispatcher.
--
-- KEYS    1 workers, 2 event stream, 3... the streams of its pools
-- ARGV    1 name, 2 incarnation, 3 incarnation that it replaces ('' for none), 4 shape, 5 held
--         (shape and held are opaque msgpack, see docs/protocol.md)
-- Returns '' or, if another incarnation is on record, that incarnation; then nothing was written.

local function join(keys, args)
    local name, incarnation = args[1], args[2]
    local current = redis.call('HGET', keys[1], name .. ':incarnation')
    if current and current ~= incarnation and current ~= args[3] then
        return current
    end
    local bad = wrong_type(keys, 'stream', 2, #keys)
    if bad then
        return refuse('BADCALL', bad .. ' is no stream')
    end

    for i = 3, #keys do
        -- From 0: what was dispatched before the first worker came is read too.
        local made = redis.pcall('XGROUP', 'CREATE', keys[i], GROUP, '0', 'MKSTREAM')
        if made.err and not string.match(made.err, 'BUSYGROUP') then
            return made
        end
    end
    if current ~= incarnation then
        redis.call('HSET', keys[1], name .. ':renewals', 0)
    else
        redis.call('HINCRBY', keys[1], name .. ':renewals', 1)
    end
    redis.call('HSET', keys[1], name .. ':incarnation', incarnation, name .. ':shape', args[4], name .. ':held', args[5])
    redis.call('XADD', keys[2], '*', 'worker', name)
    for i = 3, #keys do
        sweep_consumers(keys[i], keys[1])
    end
    return ''
end

register('join', join, {'allow-oom'})
