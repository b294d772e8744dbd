-- Appends a worker's final events.
--
-- KEYS    1 event stream
-- ARGV    one or more event batches (msgpack, see docs/protocol.md), each an entry of its own
-- Returns the id of the last entry.

local function report(keys, args)
    if #args > ITEMS then
        return refuse('BADCALL', 'a report holds at most ' .. ITEMS .. ' entries')
    end
    local last = ''
    for _, batch in ipairs(args) do
        last = redis.call('XADD', keys[1], '*', 'events', batch)
    end
    return last
end

register('report', report, {'allow-oom'})
