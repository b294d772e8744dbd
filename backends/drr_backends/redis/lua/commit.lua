-- Applies one pass of the leader, all or nothing.
--
-- KEYS    1 leader, 2 position, 3 leases, 4 active, 5 events, 6 wake, 7 nodes, 8 settings, 9 dead letters,
--         10 workers, 11 requests, 12 due, 13 delayed, 14 back, 15 graves, 16 stopping, 17 stops, 18 estimates,
--         19 changes, 20 depth, 21 admission, then pool streams, lanes, outcomes, reply streams, graves of
--         organisations, histories and accounts of usage in this order
-- ARGV    1 token, 2 pass number, 3 numbers of pool streams, lanes, outcomes, reply streams, graves, histories, accounts
--         4 msgpack, an array of arrays. `pool`, `lane`, `outcome`, `reply`, `grave` ... are places in KEYS (0: none).
--           1 position     events, wake, requests, lowest event id to keep, announcement id, request id ('': all)
--           2 settlements  (token, pool) ...
--           3 outcomes     (outcome, milliseconds to keep, record) ...
--           4 graves       (number of the settlement, preamble, grave) ...
--           5 replies      (reply, job ids with line breaks between them) ...
--           6 requeues     (token, pool, lane, attempts, losses, failures, preamble, outcome, milliseconds, record,
--                          reply, job id, grave, project, micro-worker-seconds) ... what follows the failures is for the
--                          case that the entry is gone: what depth counts of the job, too, which is not added then
--           7 removals     (lane, what a peek showed or, of a struck one, its 8 bytes, preamble or '', grave) ...
--                          without a preamble it just goes
--           8 dispatches   (lane, pool, head, token, attempt, lease) ...
--           9 charges      (token, lease) ...
--          10 nodes to set (field, record) ...
--          11 nodes to forget (field) ...
--          12 settings     one record, then (field, value) ... of admission; or none
--          13 workers to forget (name, incarnation) ...
--          14 limits       most entries of a reply stream, milliseconds to keep one, where in the key of
--                          a lane its name begins (from 1), most entries and milliseconds of a history,
--                          milliseconds of an account, most changes, most stops, number of pool streams
--          15 postpones    (token, pool, name of the lane, due time, attempts, losses, failures, preamble, outcome,
--                          milliseconds, record, reply, job id, grave, project, micro-worker-seconds) ...
--          16 matures      (sequence as 8 bytes, head, lane) ...
--          17 revivals     (number, lane, sequence as 8 bytes, header, grave, outcome) ...
--          18 dropped      (sequence as 8 bytes, head) ...   delayed jobs that go
--          19 strikes      (lane, head) ...
--          20 histories    (history, record) ...
--          21 usage        (account, field, amount) ...
--          22 depth        (field, amount) ...
--          23 stops        (token) ...
--          24 estimates to set (field, record) ..., 25 to forget (field) ...
--          26 changes      (record) ...
-- Returns the tokens whose jobs were buried because their pool entries were gone; refuses NOTLEADER, REFUSED
--         or BADCALL, and then nothing was written.
--
-- Leases and preambles are opaque: a lease record is made of entry id, head and lease; a dead letter is the time of
-- its burial, its preamble and the entry. Read and checked in the order strikes, settlements, put-backs
-- (revivals, matures, requeues), removals, dispatches, as if each had been applied already; pass_read.lua and
-- pass_write.lua are its two halves.

local function commit(keys, args)
    local token, number = args[1], tonumber(args[2])
    local leader = redis.call('HMGET', keys[1], 'token', 'passes')
    if token == '' or leader[1] ~= token then
        return refuse('NOTLEADER', 'another token leads')
    end
    if tonumber(leader[2]) ~= number - 1 then
        return refuse('NOTLEADER', 'pass ' .. args[2] .. ' does not follow pass ' .. tostring(leader[2]))
    end
    local blob = cmsgpack.unpack(args[4])
    local found, refusal = pass.read(keys, args[3], blob)
    if not found then
        return refusal
    end
    local lost
    lost, refusal = pass.write(keys, blob, found)
    if not lost then
        return refusal
    end
    redis.call('HINCRBY', keys[1], 'renewals', 1)
    redis.call('HSET', keys[1], 'passes', number)
    return lost
end

register('commit', commit, {'allow-oom'})
