-- Keeps what a handler says of its progress, while its lease lives.
--
-- KEYS    1 leases, 2 the job's progress
-- ARGV    1 token, 2 the job's sequence as u64 big-endian, 3 what it says (opaque), 4 milliseconds to keep it
-- Returns 1, or 0 if the lease is not live or not of this job; then nothing was written.

local function progress(keys, args)
    local record = redis.call('HGET', keys[1], args[1])
    local _, head = parse_lease(record or '')
    if not head or string.sub(head, 1, 8) ~= args[2] then
        return 0
    end
    redis.call('SET', keys[2], args[3], 'PX', args[4])
    return 1
end

register('progress', progress, {})
