-- Removes a worker's record and tells the dispatcher at once.
--
-- KEYS    1 workers, 2 event stream, 3... the streams of its pools
-- ARGV    1 name, 2 incarnation
-- Returns 1, or 0 if the record is not this incarnation's; then nothing was written.

local function leave(keys, args)
    local name = args[1]
    if redis.call('HGET', keys[1], name .. ':incarnation') ~= args[2] then
        return 0
    end
    local bad = wrong_type(keys, 'stream', 2, #keys)
    if bad then
        return refuse('BADCALL', bad .. ' is no stream')
    end

    redis.call('XADD', keys[2], '*', 'worker', name)
    redis.call('HDEL', keys[1], name .. ':incarnation', name .. ':shape', name .. ':held', name .. ':renewals')
    for i = 3, #keys do
        sweep_consumers(keys[i], keys[1])
    end
    return 1
end

register('leave', leave, {'allow-oom'})
