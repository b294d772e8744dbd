-- Corrects what backlog limits count of a project, and of its organisation.
--
-- KEYS    1 leader, 2 depth
-- ARGV    1 the leader's token, 2 project, 3 organisation, 4 jobs and 5 micro-worker-seconds as they were found,
--         6 jobs and 7 micro-worker-seconds to add
-- Returns 1, or 0 if they are not as they were found; refuses NOTLEADER.

local function correct(keys, args)
    if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then
        return refuse('NOTLEADER', 'another token leads')
    end
    local jobs = tonumber(redis.call('HGET', keys[2], args[2]) or 0)
    local micros = tonumber(redis.call('HGET', keys[2], args[2] .. '#') or 0)
    if jobs ~= tonumber(args[4]) or micros ~= tonumber(args[5]) then
        return 0
    end
    for tenant = 2, 3 do
        for i, field in ipairs({args[tenant], args[tenant] .. '#'}) do
            if redis.call('HINCRBY', keys[2], field, args[5 + i]) == 0 then
                redis.call('HDEL', keys[2], field)
            end
        end
    end
    return 1
end

register('correct', correct, {'allow-oom'})
