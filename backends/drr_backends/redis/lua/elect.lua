-- Makes a token the leader, by compare-and-swap; its passes start at 0.
--
-- KEYS    1 leader
-- ARGV    1 the token expected there ('' for none), 2 the new token
-- Returns 1, or 0 if another token leads; then nothing was written.

local function elect(keys, args)
    if (redis.call('HGET', keys[1], 'token') or '') ~= args[1] then
        return 0
    end
    redis.call('HSET', keys[1], 'token', args[2], 'passes', 0, 'renewals', 0)
    return 1
end

register('elect', elect, {'allow-oom'})
