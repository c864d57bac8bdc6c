"""The scripts of workers and reapers. `tessera.jobs.scripts.jobs` has the functions with which all scripts begin."""

from __future__ import annotations

from tessera.jobs.scripts.jobs import REMOVE

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
if status == 'queued' and late(id) then
  too_late(id, keep)
  return {'ended'}
end
if status ~= 'queued' then return {'ended'} end
return begin(id, worker, lease)
"""

# queue, worker, lease, keep, '1' for a short one only
CLAIM_NEXT = """
while true do
  local id = next_in(ARGV[1], ARGV[5] == '1')
  if not id then return {'gone'} end
  if not late(id) then return begin(id, ARGV[2], tonumber(ARGV[3])) end
  too_late(id, tonumber(ARGV[4]))
end
"""

# id, token, lease, progress, key of a checkpoint or '', a preview or '', how much is done or '', of how much
RENEW = """
local id, progress = ARGV[1], tonumber(ARGV[4])
if not holds(id, ARGV[2]) then return 'lost' end
if ARGV[5] ~= '' then redis.call('HSET', job(id), 'checkpoint', ARGV[5]) end
redis.call('ZADD', LEASED, text(now() + tonumber(ARGV[3])), id)
if ARGV[7] ~= '' then redis.call('HSET', job(id), 'done', ARGV[7], 'total', ARGV[8]) end
if progress > tonumber(get(id, 'progress')) then
  redis.call('HSET', job(id), 'progress', text(progress))
  tell(id, 'progress')
end
if ARGV[6] ~= '' then tell(id, 'preview', ARGV[6]) end
if get(id, 'cancel') == '1' then return 'cancel' end
return late(id) and 'late' or 'held'
"""

# id, token
LOOK = """
local id = ARGV[1]
if not holds(id, ARGV[2]) then return 'lost' end
if get(id, 'cancel') == '1' then return 'cancel' end
return late(id) and 'late' or 'held'
"""

# id, token, artifacts, keep, of how much it was or ''
COMPLETE = """
local id, token, keep = ARGV[1], ARGV[2], tonumber(ARGV[4])
if get(id, 'status') == 'completed' and get(id, 'token') == token then return 'completed' end
if not holds(id, token) then return 'lost' end
if get(id, 'cancel') == '1' then cancelled(id, keep) return 'cancelled' end
redis.call('HSET', job(id), 'progress', '100', 'artifacts', ARGV[3])
local total = ARGV[5] ~= '' and ARGV[5] or get(id, 'total')
if total then redis.call('HSET', job(id), 'done', total, 'total', total) end
-- Images are too small to say how long a video takes: most of their time is not denoising.
if get(id, 'attempts') == '1' and get(id, 'kind') ~= 'image' then learn(id, now() - tonumber(get(id, 'started_at'))) end
finish(id, 'completed', '', keep)
return 'completed'
"""

# id, token, error, whether another attempt could help, most attempts, keep, wait before the second attempt
FAIL = """
local id, err, again, most, keep = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
if not holds(id, ARGV[2]) then return 'lost' end
redis.call('HINCRBY', job(id), 'token', 1)
if get(id, 'cancel') == '1' then cancelled(id, keep) return 'cancelled' end
if again == '1' and tonumber(get(id, 'attempts')) < most then
  redis.call('HSET', job(id), 'error', err)
  queue_again(id)
  local pause = tonumber(ARGV[7]) * 2 ^ (tonumber(get(id, 'attempts')) - 1)
  if pause > 0 then
    -- In no queue until the reaper finds it due.
    unwait(id)
    redis.call('ZADD', QUEUED, text(now() + pause), id)
  end
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

# how many
EXPIRE = (
    REMOVE
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
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', text(now()), 'LIMIT', 0, ARGV[4])) do
  -- One in progress is stopped by who keeps its lease, or comes back to the queue.
  local status = get(id, 'status')
  if status == 'queued' then too_late(id, keep) elseif not status then redis.call('ZREM', DEADLINES, id) end
end
local due, waiting = {}, redis.call('ZCARD', QUEUED)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', QUEUED, '-inf', text(now()), 'LIMIT', 0, ARGV[4])) do
  local created = get(id, 'created_at')
  if not created then
    redis.call('ZREM', QUEUED, id)
  elseif tonumber(created) + keep < now() then
    finish(id, 'failed', problem('expired', 'no worker took the job in the time that jobs are kept'), keep)
  elseif redis.call('LLEN', ARGV[5] .. get(id, 'queue')) >= waiting then
    wait(id)
    redis.call('ZADD', QUEUED, text(now() + ring_after), id)
  else
    wait(id)  -- one that paused after an error, or a record of an older version, is in no queue yet
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

COUNTS = """
return {redis.call('ZCARD', QUEUED), redis.call('ZCARD', LEASED), redis.call('ZCARD', ENDED)}
"""
