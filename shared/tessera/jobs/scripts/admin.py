"""The scripts of an operator's commands. `tessera.jobs.scripts.jobs` has the functions with which all scripts begin."""

from __future__ import annotations

# state (queued, leased, ended), how many; the newest first
RECORDS = """
local keys = {queued = QUEUED, leased = LEASED, ended = ENDED}
local found = {}
for _, id in ipairs(redis.call('ZREVRANGE', keys[ARGV[1]], 0, ARGV[2] - 1)) do
  local record = redis.call('HGETALL', job(id))
  if #record > 0 then found[#found + 1] = record end
end
return found
"""

# id
RECORD = "return redis.call('HGETALL', job(ARGV[1]))"

# id, ring again after; an ended job begins again as if it were new, but for its token
RETRY = """
local id = ARGV[1]
local status = get(id, 'status')
if not status then return {'gone'} end
if status ~= 'failed' and status ~= 'cancelled' then return {status} end
redis.call('HSET', job(id), 'status', 'queued', 'progress', '0', 'attempts', '0', 'rings', '0')
redis.call('HDEL', job(id), 'ended_at', 'expires_at', 'started_at', 'error', 'deadline', 'webhook_tries',
  'webhook_result')
redis.call('ZREM', WEBHOOKS, id)
redis.call('ZREM', ENDED, id)
redis.call('SADD', unfinished(get(id, 'owner')), id)
redis.call('ZADD', QUEUED, text(now() + tonumber(ARGV[2])), id)
wait(id)
tell(id, 'queued')
return {'again', redis.call('HGETALL', job(id))}
"""
