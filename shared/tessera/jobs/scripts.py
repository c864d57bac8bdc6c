"""Every state change of a job as one Lua script, so that it happens whole or not at all.

States only move forward (queued → in_progress → an end), except that a job whose worker is lost is queued again.
Only the holder of the newest fencing token may touch a job in progress. All times are Redis' own clock in whole
microseconds (exact in a double), so no two processes need equal clocks.

Keys, all under `tessera:`:
    job:<id>                     hash, the record
    job:<id>:events              stream of what happened to it; each is told to the channel `events` too
    jobs:index:<kind>:<owner>    sorted set of ids by creation: what a list shows
    jobs:unfinished:<owner>      set of ids: what the limit counts
    jobs:queued                  sorted set of ids by when to ring (again)
    jobs:leased                  sorted set of ids by when the lease ends
    jobs:ended                   sorted set of ids by when the record is removed
    idempotency:<owner>:<key>    hash: which job a repeated request means
    workers                      set of ids; worker:<id> is each one's description and expires by itself

The scripts name keys that they compute, which Redis Cluster forbids: a single primary is assumed.
Does not know Python types: `tessera.jobs.records` does.
"""

from __future__ import annotations

PRELUDE = """
local P = 'tessera:'
local QUEUED, LEASED, ENDED = P .. 'jobs:queued', P .. 'jobs:leased', P .. 'jobs:ended'
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

-- What happened to a job, for those who watch it; a repeated status is an event too (another attempt).
local function tell(id, event)
  local known = redis.call('HMGET', job(id), 'status', 'progress', 'attempts', 'error')
  redis.call('XADD', events(id), 'MAXLEN', '~', MOST_EVENTS, '*', 'event', event, 'status', known[1],
    'progress', known[2], 'attempt', known[3], 'error', known[4] or '')
  redis.call('PUBLISH', P .. 'events', id)
end

local function finish(id, status, err, keep)
  local at = now()
  redis.call('HSET', job(id), 'status', status, 'ended_at', text(at), 'expires_at', text(at + keep))
  if err ~= '' then redis.call('HSET', job(id), 'error', err) else redis.call('HDEL', job(id), 'error') end
  redis.call('HDEL', job(id), 'cancel', 'worker', 'checkpoint')
  redis.call('SREM', unfinished(get(id, 'owner')), id)
  redis.call('ZREM', QUEUED, id)
  redis.call('ZREM', LEASED, id)
  redis.call('ZADD', ENDED, text(at + keep), id)
  tell(id, status)
end

local function cancelled(id, keep)
  finish(id, 'cancelled', problem('cancelled', 'the job was cancelled'), keep)
end

local function queue_again(id)
  redis.call('HSET', job(id), 'status', 'queued', 'progress', '0', 'rings', '0')
  redis.call('ZREM', LEASED, id)
  redis.call('ZADD', QUEUED, text(now()), id)
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
    return true
  end
  return known[1] == 'in_progress'
end
"""

# id, kind, owner, queue, input, most unfinished, ring again after, idempotency key, hash of the body, its seconds
CREATE = """
local id, kind, owner, queue, input = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most, ring_after, key, hash, keep_s = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]
if redis.call('EXISTS', job(id)) == 1 then return {'created', redis.call('HGETALL', job(id))} end
local remembered = P .. 'idempotency:' .. owner .. ':' .. key
if key ~= '' then
  local known = redis.call('HMGET', remembered, 'job', 'hash')
  if known[1] then
    if known[2] ~= hash then return {'conflict'} end
    if redis.call('EXISTS', job(known[1])) == 1 then return {'replayed', redis.call('HGETALL', job(known[1]))} end
  end
end
if redis.call('SCARD', unfinished(owner)) >= most then return {'full'} end
local at = now()
redis.call('HSET', job(id), 'id', id, 'kind', kind, 'owner', owner, 'queue', queue, 'status', 'queued',
  'input', input, 'progress', '0', 'attempts', '0', 'token', '0', 'rings', '0', 'created_at', text(at))
redis.call('ZADD', index(kind, owner), text(at), id)
redis.call('SADD', unfinished(owner), id)
redis.call('ZADD', QUEUED, text(at + ring_after), id)
if key ~= '' then
  redis.call('HSET', remembered, 'job', id, 'hash', hash)
  redis.call('EXPIRE', remembered, keep_s)
end
tell(id, 'queued')
return {'created', redis.call('HGETALL', job(id))}
"""

# id, kind, owner
GET = """
local record = redis.call('HGETALL', job(ARGV[1]))
if #record == 0 or get(ARGV[1], 'owner') ~= ARGV[3] or get(ARGV[1], 'kind') ~= ARGV[2] then return false end
return record
"""

# id, kind, owner, after, how many; answers the record and its events behind `after`
EVENTS = """
local record = redis.call('HGETALL', job(ARGV[1]))
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

# id, worker, lease, most attempts, keep
CLAIM = """
local id, worker, lease, most, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local status = get(id, 'status')
if not status then return {'gone'} end
if status == 'in_progress' then
  if tonumber(redis.call('ZSCORE', LEASED, id)) > now() then return {'busy'} end
  lose(id, most, keep)
  status = get(id, 'status')
end
if status ~= 'queued' then return {'ended'} end
local at = now()
redis.call('HINCRBY', job(id), 'attempts', 1)
redis.call('HINCRBY', job(id), 'token', 1)
redis.call('HSET', job(id), 'status', 'in_progress', 'progress', '0', 'worker', worker, 'started_at', text(at))
redis.call('ZREM', QUEUED, id)
redis.call('ZADD', LEASED, text(at + lease), id)
tell(id, 'in_progress')
return {'claimed', get(id, 'token'), redis.call('HGETALL', job(id))}
"""

# id, token, lease, progress, key of a checkpoint or ''
RENEW = """
local id, progress = ARGV[1], tonumber(ARGV[4])
if not holds(id, ARGV[2]) then return 'lost' end
if ARGV[5] ~= '' then redis.call('HSET', job(id), 'checkpoint', ARGV[5]) end
redis.call('ZADD', LEASED, text(now() + tonumber(ARGV[3])), id)
if progress > tonumber(get(id, 'progress')) then
  redis.call('HSET', job(id), 'progress', text(progress))
  tell(id, 'progress')
end
return get(id, 'cancel') == '1' and 'cancel' or 'held'
"""

# id, token, artifacts, keep
COMPLETE = """
local id, token, keep = ARGV[1], ARGV[2], tonumber(ARGV[4])
if get(id, 'status') == 'completed' and get(id, 'token') == token then return 'completed' end
if not holds(id, token) then return 'lost' end
if get(id, 'cancel') == '1' then cancelled(id, keep) return 'cancelled' end
redis.call('HSET', job(id), 'progress', '100', 'artifacts', ARGV[3])
finish(id, 'completed', '', keep)
return 'completed'
"""

# id, token, error, whether another attempt could help, most attempts, keep
FAIL = """
local id, err, again, most, keep = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
if not holds(id, ARGV[2]) then return 'lost' end
redis.call('HINCRBY', job(id), 'token', 1)
if get(id, 'cancel') == '1' then cancelled(id, keep) return 'cancelled' end
if again == '1' and tonumber(get(id, 'attempts')) < most then
  redis.call('HSET', job(id), 'error', err)
  queue_again(id)
  return 'queued'
end
finish(id, 'failed', err, keep)
return 'failed'
"""

# id, token, keep, key of a checkpoint or ''
RELEASE = """
local id = ARGV[1]
if not holds(id, ARGV[2]) then return 'lost' end
if ARGV[4] ~= '' then redis.call('HSET', job(id), 'checkpoint', ARGV[4]) end
redis.call('HINCRBY', job(id), 'token', 1)
if get(id, 'cancel') == '1' then cancelled(id, tonumber(ARGV[3])) return 'cancelled' end
redis.call('HINCRBY', job(id), 'attempts', -1)
queue_again(id)
return 'queued'
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

_REMOVE = """
local function remove(id)
  local known = redis.call('HMGET', job(id), 'kind', 'owner')
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
    _REMOVE
    + """
local known = redis.call('HMGET', job(ARGV[1]), 'kind', 'owner')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return 0 end
remove(ARGV[1])
return 1
"""
)

# how many
EXPIRE = (
    _REMOVE
    + """
local ids = redis.call('ZRANGEBYSCORE', ENDED, '-inf', text(now()), 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do remove(id) end
return ids
"""
)

# most attempts, keep, ring again after, how many, prefix of Celery's queues; answers [id, queue, …] to ring for.
# A queue that holds as many rings as there are queued jobs has lost none: no more are added then.
REAP = """
local most, keep, ring_after = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '-inf', text(now()), 'LIMIT', 0, ARGV[4])) do
  if get(id, 'status') then lose(id, most, keep) else redis.call('ZREM', LEASED, id) end
end
local due, waiting = {}, redis.call('ZCARD', QUEUED)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', QUEUED, '-inf', text(now()), 'LIMIT', 0, ARGV[4])) do
  local created = get(id, 'created_at')
  if not created then
    redis.call('ZREM', QUEUED, id)
  elseif tonumber(created) + keep < now() then
    finish(id, 'failed', problem('expired', 'no worker took the job in the time that jobs are kept'), keep)
  elseif redis.call('LLEN', ARGV[5] .. get(id, 'queue')) >= waiting then
    redis.call('ZADD', QUEUED, text(now() + ring_after), id)
  else
    local rings = redis.call('HINCRBY', job(id), 'rings', 1)
    redis.call('ZADD', QUEUED, text(now() + ring_after * 2 ^ math.min(rings, MOST_DOUBLINGS)), id)
    due[#due + 1] = id
    due[#due + 1] = get(id, 'queue')
  end
end
return due
"""

# id, seconds, description
REGISTER_WORKER = """
redis.call('SET', P .. 'worker:' .. ARGV[1], ARGV[3], 'PX', ARGV[2])
redis.call('SADD', P .. 'workers', ARGV[1])
return 1
"""

# id
REMOVE_WORKER = """
redis.call('DEL', P .. 'worker:' .. ARGV[1])
return redis.call('SREM', P .. 'workers', ARGV[1])
"""

WORKERS = """
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', P .. 'workers')) do
  local worker = redis.call('GET', P .. 'worker:' .. id)
  if worker then found[#found + 1] = worker else redis.call('SREM', P .. 'workers', id) end
end
return found
"""

COUNTS = """
return {redis.call('ZCARD', QUEUED), redis.call('ZCARD', LEASED), redis.call('ZCARD', ENDED)}
"""
