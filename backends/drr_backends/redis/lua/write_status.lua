-- Stores the leader's description of its tree.
--
-- KEYS    1 leader, 2 status
-- ARGV    1 token, 2 the description (opaque)
-- Returns 1; refuses NOTLEADER.

local function write_status(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return refuse('NOTLEADER', 'another token leads')
    end
    redis.call('SET', keys[2], args[2])
    return 1
end

register('write_status', write_status, {'allow-oom'})
