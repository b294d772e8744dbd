-- Sets one note right that contradicts what it is a note of. Everything is looked at again before.
--
-- KEYS    1 leader, 2 leases, 3 due, 4 delayed, 5 back, 6 active, 7 wake, 8 a lane, or any of these again
-- ARGV    1 the leader's token, 2 what to mend, 3 its subject, 4 what belongs to that
--           'undue'    delayed job (8 bytes), due time to give it   it has none
--           'stale'    due time of a job (8 bytes)                  it is not delayed
--           'runs'     job (8 bytes), token                         no lease of that token is the job's
--           'runs not' job (8 bytes), token                         the lease is there, and nothing leads to it
--           'back'     job (8 bytes), name of its lane              put back, it is said, and not in the lane
--           'empty'    name of the lane                             said to hold jobs, and does not
--           'hidden'   name of the lane                             holds jobs, which is not said
-- Returns 1 if it was mended, 0 if there was nothing to mend; refuses NOTLEADER.

local mends = {}

function mends.undue(keys, subject, value)
    if redis.call('HEXISTS', keys[4], subject) == 0 or redis.call('ZSCORE', keys[3], subject) then
        return 0
    end
    redis.call('ZADD', keys[3], value, subject)
    redis.call('XADD', keys[7], '*', 'due', value)
    return 1
end

function mends.stale(keys, subject)
    return redis.call('HEXISTS', keys[4], subject) == 0 and redis.call('ZREM', keys[3], subject) or 0
end

local function lease_of(keys, subject, token)
    local record = redis.call('HGET', keys[2], token)
    local _, head = parse_lease(record or '')
    return head and string.sub(head, 1, 8) == subject
end

function mends.runs(keys, subject, token)
    if redis.call('HGET', keys[2], running(subject)) ~= token or lease_of(keys, subject, token) then
        return 0
    end
    return redis.call('HDEL', keys[2], running(subject))
end

mends['runs not'] = function(keys, subject, token)
    if redis.call('HEXISTS', keys[2], running(subject)) == 1 or not lease_of(keys, subject, token) then
        return 0
    end
    return redis.call('HSET', keys[2], running(subject), token)
end

function mends.back(keys, subject, name)
    if not put_back_attempts(keys[5], name, subject) then
        return 0
    end
    local length = redis.call('LLEN', keys[8])
    for at = 0, math.min(length, tonumber(redis.call('HGET', keys[5], name) or 0)) - 1 do
        if string.sub(redis.call('LINDEX', keys[8], at) or '', 1, 8) == subject then
            return 0
        end
    end
    redis.call('HDEL', keys[5], '#' .. subject)
    if length == 0 then
        redis.call('HDEL', keys[5], name)
    end
    return 1
end

function mends.empty(keys, name)
    return redis.call('EXISTS', keys[8]) == 0 and redis.call('SREM', keys[6], name) or 0
end

function mends.hidden(keys, name)
    local head = redis.call('LINDEX', keys[8], 0)
    if not head or redis.call('SADD', keys[6], name) == 0 then
        return 0
    end
    redis.call('XADD', keys[7], '*', 'lane', name, 'head', visible(head))
    return 1
end

local function mend(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return refuse('NOTLEADER', 'another token leads')
    end
    local found = mends[args[2]]
    if not found then
        return refuse('BADCALL', 'there is nothing of that name to mend')
    end
    local bad = wrong_type(keys, 'hash', 1, 2) or wrong_type(keys, 'zset', 3, 3) or wrong_type(keys, 'hash', 4, 5)
        or wrong_type(keys, 'set', 6, 6) or wrong_type(keys, 'stream', 7, 7)
    if bad then
        return refuse('BADCALL', bad .. ' has the wrong type')
    end
    return found(keys, args[3], args[4])
end

register('mend', mend, {'allow-oom'})
