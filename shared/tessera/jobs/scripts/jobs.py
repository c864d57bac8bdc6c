"""Every change of a job's state as one Lua script, so that it happens whole or not at all.

States only move forward (queued → in_progress → an end), except that a job whose worker is lost is queued again.
Only the holder of the newest fencing token may touch a job in progress. All times are Redis' own clock in whole
microseconds (exact in a double), so no two processes need equal clocks.

Keys, all under `tessera:`:
    job:<id>                     hash, the record
    job:<id>:events              stream of the job's events; each is published to the channel `events`, too
    jobs:index:<kind>:<owner>    sorted set of ids by time of creation, which a list shows
    jobs:unfinished:<owner>      set of ids, which the limit counts
    jobs:queued                  sorted set of ids by the time of the next ring
    jobs:leased                  sorted set of ids by the time when the lease ends
    jobs:ended                   sorted set of ids by the time when the record is removed
    jobs:deadlines               sorted set of the ids of jobs with a deadline, by that time
    idempotency:<owner>:<key>    hash: the job that a repeated request stands for
    workers                      set of ids; worker:<id> is the description of each and expires by itself

`tessera.jobs.scripts.queues` decides which waiting job is next. The scripts compute the keys that they use, which Redis
Cluster forbids: a single primary is assumed. Knows no Python types.
"""

from __future__ import annotations

from tessera.jobs.scripts.queues import FAIR

_BASICS = """
local P = 'tessera:'
local QUEUED, LEASED, ENDED = P .. 'jobs:queued', P .. 'jobs:leased', P .. 'jobs:ended'
local DEADLINES, WEBHOOKS = P .. 'jobs:deadlines', P .. 'jobs:webhooks'
local MOST_DOUBLINGS = 6
local MOST_EVENTS = 1000

local function text(number) return string.format('%.0f', number) end
local function now() local time = redis.call('TIME'); return time[1] * 1000000 + time[2] end
local function job(id) return P .. 'job:' .. id end
local function index(kind, owner) return P .. 'jobs:index:' .. kind .. ':' .. owner end
local function unfinished(owner) return P .. 'jobs:unfinished:' .. owner end
local function get(id, field) return redis.call('HGET', job(id), field) end
local function events(id) return job(id) .. ':events' end
local function problem(code, message) return cjson.encode({code = code, message = message}) end

"""
_STATES = """
-- What happened to a job, for those who watch it; a repeated status is an event too (another attempt).
-- `picture`, a JPEG, comes with a preview alone.
local function tell(id, event, picture)
  local known = redis.call('HMGET', job(id), 'status', 'progress', 'attempts', 'error', 'done', 'total')
  redis.call('XADD', events(id), 'MAXLEN', '~', MOST_EVENTS, '*', 'event', event, 'status', known[1],
    'progress', known[2], 'attempt', known[3], 'error', known[4] or '', 'picture', picture or '',
    'done', known[5] or '', 'total', known[6] or '')
  redis.call('PUBLISH', P .. 'events', id)
end

local function finish(id, status, err, keep)
  local at = now()
  keep = tonumber(get(id, 'keep') or keep)
  redis.call('HSET', job(id), 'status', status, 'ended_at', text(at), 'expires_at', text(at + keep))
  if err ~= '' then redis.call('HSET', job(id), 'error', err) else redis.call('HDEL', job(id), 'error') end
  redis.call('HDEL', job(id), 'cancel', 'worker', 'checkpoint')
  redis.call('SREM', unfinished(get(id, 'owner')), id)
  redis.call('ZREM', QUEUED, id)
  redis.call('ZREM', LEASED, id)
  redis.call('ZREM', DEADLINES, id)
  unwait(id)
  redis.call('ZADD', ENDED, text(at + keep), id)
  if get(id, 'webhook') then redis.call('ZADD', WEBHOOKS, text(at), id) end
  tell(id, status)
end

local function cancelled(id, keep)
  finish(id, 'cancelled', problem('cancelled', 'the job was cancelled'), keep)
end

local function queue_again(id)
  redis.call('HSET', job(id), 'status', 'queued', 'progress', '0', 'rings', '0')
  redis.call('HDEL', job(id), 'done')
  redis.call('ZREM', LEASED, id)
  redis.call('ZADD', QUEUED, text(now()), id)
  wait(id)
  tell(id, 'queued')
end

-- A lease ran out. The token stays, so that its holder may come back as long as nobody else has taken the job.
local function lose(id, most_attempts, keep)
  local known = redis.call('HMGET', job(id), 'cancel', 'attempts', 'error')
  if known[1] == '1' then
    cancelled(id, keep)
  elseif tonumber(known[2]) >= most_attempts then
    finish(id, 'failed', known[3] or problem('worker_died', 'the worker was lost in each of '
      .. known[2] .. ' attempts at this job'), keep)
  else
    queue_again(id)
  end
end

-- Whether `token` may still change the job; takes a job back that was queued again but not given to another.
local function holds(id, token)
  local known = redis.call('HMGET', job(id), 'status', 'token')
  if known[2] ~= token then return false end
  if known[1] == 'queued' then
    redis.call('HSET', job(id), 'status', 'in_progress')
    redis.call('ZREM', QUEUED, id)
    unwait(id)
    return true
  end
  return known[1] == 'in_progress'
end

-- The record, and of a job that has not ended what its times can be estimated from.
local function shown(id)
  local record = redis.call('HGETALL', job(id))
  local known = redis.call('HMGET', job(id), 'queue', 'status', 'place')
  local seconds, _, left, largest = flow(known[1] or '')
  if seconds < 0 or not known[3] or (known[2] ~= 'queued' and known[2] ~= 'in_progress') then return record end
  local slots = 0
  for _, worker in ipairs(redis.call('SMEMBERS', P .. 'workers')) do
    local said = redis.call('GET', P .. 'worker:' .. worker)
    local described = said and cjson.decode(said)
    if described and described.queue == known[1] then slots = slots + (described.slots or 1) end
  end
  local more = {'now', text(now()), 'seconds', string.format('%.17g', seconds), 'slots', text(slots),
    'largest', largest, 'ahead', string.format('%.17g', math.max(0, tonumber(known[3]) - left))}
  for _, value in ipairs(more) do record[#record + 1] = value end
  return record
end

local function late(id)
  local deadline = get(id, 'deadline')
  return deadline and tonumber(deadline) < now()
end

local function too_late(id, keep)
  finish(id, 'failed', problem('deadline_exceeded', 'the job had not ended at the deadline that came with it'), keep)
end

local function begin(id, worker, lease)
  local at = now()
  redis.call('HINCRBY', job(id), 'attempts', 1)
  redis.call('HINCRBY', job(id), 'token', 1)
  redis.call('HSET', job(id), 'status', 'in_progress', 'progress', '0', 'worker', worker, 'started_at', text(at))
  redis.call('ZREM', QUEUED, id)
  redis.call('ZADD', LEASED, text(at + lease), id)
  serve(id)
  tell(id, 'in_progress')
  return {'claimed', get(id, 'token'), redis.call('HGETALL', job(id))}
end
"""
PRELUDE = _BASICS + FAIR + _STATES

# id, kind, owner, queue, input, most unfinished, ring again after, idempotency key, hash of the body, its seconds,
# cost, priority, microseconds until its deadline or '', microseconds that a short job takes at most, webhook or '',
# microseconds that it is kept when it has ended or '' for as long as others
CREATE = """
-- The owner has too many: his jobs that may end first, from which the wait can be estimated.
local function full(owner)
  local found, first, place = {'full'}, nil, nil
  for _, other in ipairs(redis.call('SMEMBERS', unfinished(owner))) do
    local known = redis.call('HMGET', job(other), 'status', 'place')
    if known[1] == 'in_progress' and #found < 9 then
      found[#found + 1] = shown(other)
    elseif known[1] == 'queued' and known[2] and (not place or tonumber(known[2]) < place) then
      first, place = other, tonumber(known[2])
    end
  end
  if #found == 1 and first then found[2] = shown(first) end
  return found
end

local id, kind, owner, queue, input = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most, ring_after, key, hash, keep_s = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]
if redis.call('EXISTS', job(id)) == 1 then return {'created', shown(id)} end
local remembered = P .. 'idempotency:' .. owner .. ':' .. key
if key ~= '' then
  local known = redis.call('HMGET', remembered, 'job', 'hash')
  if known[1] then
    if known[2] ~= hash then return {'conflict'} end
    if redis.call('EXISTS', job(known[1])) == 1 then return {'replayed', shown(known[1])} end
  end
end
if redis.call('SCARD', unfinished(owner)) >= most then return full(owner) end
local at = now()
redis.call('HSET', job(id), 'id', id, 'kind', kind, 'owner', owner, 'queue', queue, 'status', 'queued',
  'input', input, 'progress', '0', 'attempts', '0', 'token', '0', 'rings', '0', 'created_at', text(at),
  'cost', ARGV[11], 'priority', ARGV[12])
if ARGV[15] ~= '' then redis.call('HSET', job(id), 'webhook', ARGV[15]) end
if ARGV[16] ~= '' then redis.call('HSET', job(id), 'keep', ARGV[16]) end
if ARGV[13] ~= '' then
  redis.call('HSET', job(id), 'deadline', text(at + tonumber(ARGV[13])))
  redis.call('ZADD', DEADLINES, text(at + tonumber(ARGV[13])), id)
end
local seconds, entered = flow(queue)
-- Of a queue that has ended nothing yet, all jobs are short: nothing is known that would part them.
local class = seconds * tonumber(ARGV[11]) * 1000000 > tonumber(ARGV[14]) and 'long' or 'short'
redis.call('HSET', job(id), 'class', class, 'place', string.format('%.17g', entered))
redis.call('ZADD', index(kind, owner), text(at), id)
redis.call('SADD', unfinished(owner), id)
redis.call('ZADD', QUEUED, text(at + ring_after), id)
wait(id)
if key ~= '' then
  redis.call('HSET', remembered, 'job', id, 'hash', hash)
  redis.call('EXPIRE', remembered, keep_s)
end
tell(id, 'queued')
return {'created', shown(id)}
"""

# id, kind, owner
GET = """
local record = shown(ARGV[1])
if #record == 0 or get(ARGV[1], 'owner') ~= ARGV[3] or get(ARGV[1], 'kind') ~= ARGV[2] then return false end
return record
"""

# id, kind, owner, after, how many; answers the record and its events behind `after`
EVENTS = """
local record = shown(ARGV[1])
if #record == 0 or get(ARGV[1], 'owner') ~= ARGV[3] or get(ARGV[1], 'kind') ~= ARGV[2] then return false end
local after = ARGV[4] == '' and '-' or '(' .. ARGV[4]
return {record, redis.call('XRANGE', events(ARGV[1]), after, '+', 'COUNT', ARGV[5])}
"""

# kind, owner, after, limit, order
LIST = """
local key, after, limit, order = index(ARGV[1], ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local start = 0
if after ~= '' then
  local rank = redis.call(order == 'asc' and 'ZRANK' or 'ZREVRANK', key, after)
  if not rank then return {'unknown'} end
  start = rank + 1
end
local ids = redis.call(order == 'asc' and 'ZRANGE' or 'ZREVRANGE', key, start, start + limit)
local found = {#ids > limit and 'more' or 'last'}
for position = 1, math.min(#ids, limit) do found[position + 1] = redis.call('HGETALL', job(ids[position])) end
return found
"""

# id, kind, owner, keep
CANCEL = """
local id = ARGV[1]
local known = redis.call('HMGET', job(id), 'kind', 'owner', 'status')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return {'gone'} end
if known[3] == 'queued' then
  cancelled(id, tonumber(ARGV[4]))
elseif known[3] == 'in_progress' then
  redis.call('HSET', job(id), 'cancel', '1')
else
  return {'ended', redis.call('HGETALL', job(id))}
end
return {'cancelled', redis.call('HGETALL', job(id))}
"""

REMOVE = """
local function remove(id)
  local known = redis.call('HMGET', job(id), 'kind', 'owner')
  unwait(id)
  redis.call('ZREM', DEADLINES, id)
  redis.call('ZREM', WEBHOOKS, id)
  redis.call('ZREM', QUEUED, id)
  redis.call('ZREM', LEASED, id)
  redis.call('ZREM', ENDED, id)
  if known[1] then
    redis.call('ZREM', index(known[1], known[2]), id)
    redis.call('SREM', unfinished(known[2]), id)
  end
  redis.call('DEL', job(id), events(id))
  redis.call('PUBLISH', P .. 'events', id)
end
"""

# id, kind, owner
DELETE = (
    REMOVE
    + """
local known = redis.call('HMGET', job(ARGV[1]), 'kind', 'owner')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return 0 end
remove(ARGV[1])
return 1
"""
)

WORKERS = """
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', P .. 'workers')) do
  local worker = redis.call('GET', P .. 'worker:' .. id)
  if worker then found[#found + 1] = worker else redis.call('SREM', P .. 'workers', id) end
end
return found
"""
