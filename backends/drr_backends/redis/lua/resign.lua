-- Gives up the leadership and wakes the standbys.
--
-- KEYS    1 leader, 2 stream of resignations
-- ARGV    1 token
-- Returns 1, or 0 if the token does not lead; then nothing was written.

local function resign(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return 0
    end
    local bad = wrong_type(keys, 'stream', 2, 2)
    if bad then
        return refuse('BADCALL', bad .. ' is no stream')
    end

    redis.call('XADD', keys[2], 'MAXLEN', 1, '*', 'token', args[1])
    redis.call('HSET', keys[1], 'token', '')
    return 1
end

register('resign', resign, {'allow-oom'})
