"""The scripts of webhooks: which deliveries are due. `tessera.jobs.scripts.jobs` has the functions of all scripts.

Keys, under `tessera:`:
    jobs:webhooks    sorted set of ids by the time of the next delivery; a job with a `webhook` is added when it ends
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
