-- Notes that a dispatcher lives, whether it leads or stands by.
--
-- KEYS    1 the dispatcher's attendance
-- ARGV    1 milliseconds after which it is forgotten
-- Returns the counter, which rises by one with each call.

local function attend(keys, args)
    local counter = redis.call('INCR', keys[1])
    redis.call('PEXPIRE', keys[1], args[1])
    return counter
end

register('attend', attend, {'allow-oom'})
