-- Raises the leader's renewal counter.
--
-- KEYS    1 leader
-- ARGV    1 token
-- Returns the counter; refuses NOTLEADER.

local function renew(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return refuse('NOTLEADER', 'another token leads')
    end
    return redis.call('HINCRBY', keys[1], 'renewals', 1)
end

register('renew', renew, {'allow-oom'})
