"""Every change of kept responses as one Lua script, so that it happens whole or not at all.

Keys, all under `tessera:responses:<owner>`, so that an owner sees his own alone:
    …:response:<id> hash: `response` and `input` (JSON), `previous` (an id or ''), `items` (ids of its items), `ended`
    …:response:<id>:events  list: the events of a response that is made by a job, each at the place of its number
    …               sorted set of ids by the time when they were kept
    …:sizes         hash: the bytes of each, and of all under `*`
    …:items         hash: the id of the response that has an item, by the item's id

A response goes when its time is over, when it is deleted, or when its owner has more bytes than he may: the oldest
first. The scripts compute the keys that they use, which Redis Cluster forbids: a single primary is assumed, as by
`tessera.jobs`.
"""

from __future__ import annotations

PRELUDE = """
local P = 'tessera:responses:' .. ARGV[1]
local function record(id) return P .. ':response:' .. id end
local function text(number) return string.format('%.0f', number) end
local function now() local time = redis.call('TIME'); return time[1] * 1000 + math.floor(time[2] / 1000) end

local function drop(id)
  local items = redis.call('HGET', record(id), 'items')
  if items then
    for _, item in ipairs(cjson.decode(items)) do redis.call('HDEL', P .. ':items', item) end
  end
  local size = redis.call('HGET', P .. ':sizes', id)
  if size then redis.call('HINCRBY', P .. ':sizes', '*', -tonumber(size)) end
  redis.call('HDEL', P .. ':sizes', id)
  redis.call('ZREM', P, id)
  return redis.call('DEL', record(id), record(id) .. ':events')
end
"""

# owner, id, response, input or '' for what is kept, previous, ids of items, '1' if it has ended,
# milliseconds to keep, most bytes of the owner, '1' if it must be kept already; answers kept, large, gone or ended
KEEP = """
local id, keep_ms, most = ARGV[2], tonumber(ARGV[8]), tonumber(ARGV[9])
local known = redis.call('HMGET', record(id), 'ended', 'input', 'previous', 'items')
local items = cjson.decode(ARGV[6])
if ARGV[10] == '1' and not known[1] then return 'gone' end
if known[1] == '1' then return 'ended' end
local input = ARGV[4]
local previous = ARGV[5]
if input == '' then
  input, previous = known[2], known[3]
  for _, item in ipairs(cjson.decode(known[4])) do items[#items + 1] = item end
end
local size = #ARGV[3] + #input + #ARGV[6]
if size > most then return 'large' end
local old = redis.call('HGET', P .. ':sizes', id)
if old then redis.call('HINCRBY', P .. ':sizes', '*', -tonumber(old)) end
redis.call('HSET', P .. ':sizes', id, 0)
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', P, '-inf', text(now() - keep_ms))) do
  if expired ~= id then drop(expired) end
end
while tonumber(redis.call('HGET', P .. ':sizes', '*') or '0') + size > most do
  local oldest = redis.call('ZRANGE', P, 0, 1)
  local victim = oldest[1] == id and oldest[2] or oldest[1]
  if not victim then break end
  drop(victim)
end
redis.call('HSET', record(id), 'response', ARGV[3], 'input', input, 'previous', previous, 'items',
  #items > 0 and cjson.encode(items) or '[]',
  'ended', ARGV[7])
if not redis.call('ZSCORE', P, id) then redis.call('ZADD', P, text(now()), id) end
redis.call('HSET', P .. ':sizes', id, size)
redis.call('HINCRBY', P .. ':sizes', '*', size)
for _, item in ipairs(items) do redis.call('HSET', P .. ':items', item, id) end
if redis.call('PTTL', record(id)) < 0 then redis.call('PEXPIRE', record(id), keep_ms) end
for _, key in ipairs({P, P .. ':sizes', P .. ':items'}) do redis.call('PEXPIRE', key, keep_ms) end
return 'kept'
"""

# owner, id; answers response, input, previous, ended, or nothing
GET = """
return redis.call('HMGET', record(ARGV[2]), 'response', 'input', 'previous', 'ended')
"""

# owner, id, most responses, most bytes; answers [id, input, response, ended, …] from the newest to the first, then what
# ended it: whole, gone, long or large
CHAIN = """
local found, id, bytes = {}, ARGV[2], 0
for _ = 1, tonumber(ARGV[3]) do
  local known = redis.call('HMGET', record(id), 'input', 'response', 'previous', 'ended')
  if not known[1] then found[#found + 1] = 'gone'; found[#found + 1] = id; return found end
  bytes = bytes + #known[1] + #known[2]
  if bytes > tonumber(ARGV[4]) then found[#found + 1] = 'large'; found[#found + 1] = id; return found end
  for _, value in ipairs({id, known[1], known[2], known[4]}) do found[#found + 1] = value end
  if known[3] == '' then found[#found + 1] = 'whole'; found[#found + 1] = id; return found end
  id = known[3]
end
found[#found + 1] = 'long'
found[#found + 1] = id
return found
"""

# owner, ids of items …; answers for each the input and the response that has it, or nothing twice
ITEMS = """
local found = {}
for place = 2, #ARGV do
  local id = redis.call('HGET', P .. ':items', ARGV[place])
  local known = id and redis.call('HMGET', record(id), 'input', 'response') or {false, false}
  found[#found + 1] = known[1]
  found[#found + 1] = known[2]
end
return found
"""

# owner, id
DELETE = """
local there = redis.call('EXISTS', record(ARGV[2]))
drop(ARGV[2])
return there
"""

# owner, id, milliseconds to keep, events …; answers how many there are, or -1 if the response is gone
APPEND = """
local key = record(ARGV[2]) .. ':events'
if redis.call('EXISTS', record(ARGV[2])) == 0 then return -1 end
local bytes = 0
for place = 4, #ARGV do
  redis.call('RPUSH', key, ARGV[place])
  bytes = bytes + #ARGV[place]
end
redis.call('PEXPIRE', key, ARGV[3])
redis.call('PUBLISH', 'tessera:events', ARGV[2])
return redis.call('LLEN', key)
"""

# owner, id, number of the first, how many; answers whether the response is there, and the events
EVENTS = """
local first = tonumber(ARGV[3])
return {redis.call('EXISTS', record(ARGV[2])), redis.call('EXISTS', record(ARGV[2]) .. ':events'),
  redis.call('LRANGE', record(ARGV[2]) .. ':events', first, first + tonumber(ARGV[4]) - 1)}
"""
SCRIPTS = {
    "KEEP": KEEP,
    "GET": GET,
    "CHAIN": CHAIN,
    "ITEMS": ITEMS,
    "DELETE": DELETE,
    "APPEND": APPEND,
    "EVENTS": EVENTS,
}
