"""The scripts of webhooks: which ended jobs are to be told. What all begin with is in `tessera.jobs.scripts.jobs`.

Keys, under `tessera:`:
    jobs:webhooks    sorted set of ids by when to tell next, put there when a job with a `webhook` ends
"""

from __future__ import annotations

# until when others leave it alone, in microseconds, how many; answers [tries, record, …]
WEBHOOKS_DUE = """
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', WEBHOOKS, '-inf', text(now()), 'LIMIT', 0, ARGV[2])) do
  local record = redis.call('HGETALL', job(id))
  if #record == 0 then
    redis.call('ZREM', WEBHOOKS, id)
  else
    redis.call('ZADD', WEBHOOKS, text(now() + tonumber(ARGV[1])), id)
    found[#found + 1] = redis.call('HINCRBY', job(id), 'webhook_tries', 1)
    found[#found + 1] = record
  end
end
return found
"""

# id, what became of it, microseconds until the next try or '' for none
WEBHOOK_DONE = """
if not get(ARGV[1], 'status') then return redis.call('ZREM', WEBHOOKS, ARGV[1]) end
redis.call('HSET', job(ARGV[1]), 'webhook_result', ARGV[2])
if ARGV[3] == '' then return redis.call('ZREM', WEBHOOKS, ARGV[1]) end
return redis.call('ZADD', WEBHOOKS, text(now() + tonumber(ARGV[3])), ARGV[1])
"""
