"""Which job is next: start-time fair queueing (Goyal et al. 1996) in Redis, over classes of length and then owners.

A queue holds flows. The tag of a flow is the cost that it was served since it last had no waiting job. The flow with
the lowest tag is next, so an owner with few jobs is served before one with many, and nobody starves. First the class is
chosen (`short` or `long`, by the seconds that a job is expected to take), then the owner within it, then that owner's
job with the lowest priority number, the oldest of equals.

Keys, all under `tessera:`; <flow> is a class, or a class and an owner:
    jobs:next:<queue>                 sorted set of classes by tag
    jobs:next:<queue>:<class>         sorted set of owners by tag
    jobs:waiting:<queue>:<class>:<owner>  sorted set of ids by priority and creation
    jobs:tags:<queue>                 hash: the last tag of each flow; a parent has the tag that was served last
    jobs:flow:<queue>                 hash: the cost that ever `entered` and `left`; the `seconds` of a unit of cost:
                                      those that the latest jobs `took` by their `costs`; the `largest` cost of one

Tags are removed when no job waits. `tessera.jobs.scripts.jobs` puts these functions into each script. Knows no states.
"""

from __future__ import annotations

FAIR = """
local PRIORITY_STEP = 10000000000000
local SMOOTHING = 0.2

local function next_key(queue, class) return P .. 'jobs:next:' .. queue .. (class and ':' .. class or '') end
local function waiting_key(queue, class, owner)
  return P .. 'jobs:waiting:' .. queue .. ':' .. class .. ':' .. owner
end
local function tags_key(queue) return P .. 'jobs:tags:' .. queue end
local function flow_key(queue) return P .. 'jobs:flow:' .. queue end
local function tag_of(queue, flow) return tonumber(redis.call('HGET', tags_key(queue), flow) or '0') end

-- A flow begins to wait: behind what it was given, and not before what is served now.
local function enter(queue, set, parent, flow, member)
  if not redis.call('ZSCORE', set, member) then
    redis.call('ZADD', set, string.format('%.17g', math.max(tag_of(queue, flow), tag_of(queue, parent))), member)
  end
end

-- A flow was given something.
local function charge(queue, set, parent, flow, member, cost)
  local tag = tonumber(redis.call('ZSCORE', set, member) or tag_of(queue, parent))
  redis.call('HSET', tags_key(queue), parent, string.format('%.17g', tag), flow, string.format('%.17g', tag + cost))
  redis.call('ZADD', set, 'XX', string.format('%.17g', tag + cost), member)
end

local function place(id)
  local known = redis.call('HMGET', job(id), 'queue', 'class', 'owner', 'cost', 'priority', 'created_at')
  return known[1], known[2] or 'long', known[3], tonumber(known[4] or '1'), tonumber(known[5] or '0'),
    tonumber(known[6] or '0')
end

local function wait(id)
  local queue, class, owner, cost, priority, created = place(id)
  enter(queue, next_key(queue), '', class, class)
  enter(queue, next_key(queue, class), class, class .. ':' .. owner, owner)
  local score = priority * PRIORITY_STEP + math.floor(created / 1000)
  if redis.call('ZADD', waiting_key(queue, class, owner), text(score), id) == 1 then
    redis.call('HINCRBYFLOAT', flow_key(queue), 'entered', cost)
  end
end

local function unwait(id)
  local queue, class, owner, cost = place(id)
  if not queue or redis.call('ZREM', waiting_key(queue, class, owner), id) == 0 then return end
  redis.call('HINCRBYFLOAT', flow_key(queue), 'left', cost)
  if redis.call('EXISTS', waiting_key(queue, class, owner)) == 1 then return end
  redis.call('ZREM', next_key(queue, class), owner)
  if redis.call('EXISTS', next_key(queue, class)) == 1 then return end
  redis.call('ZREM', next_key(queue), class)
  if redis.call('EXISTS', next_key(queue)) == 0 then redis.call('DEL', tags_key(queue)) end
end

-- The id of the job that is next in a queue, or nil; of class `short` only, if so asked.
local function next_in(queue, short_only)
  for _, class in ipairs(redis.call('ZRANGE', next_key(queue), 0, -1)) do
    if class == 'short' or not short_only then
      for _, owner in ipairs(redis.call('ZRANGE', next_key(queue, class), 0, -1)) do
        for _, id in ipairs(redis.call('ZRANGE', waiting_key(queue, class, owner), 0, -1)) do
          if redis.call('HGET', job(id), 'status') == 'queued' then return id end
          redis.call('ZREM', waiting_key(queue, class, owner), id)  -- its record is gone
        end
      end
    end
  end
  return nil
end

-- A job that waited is served.
local function serve(id)
  local queue, class, owner, cost = place(id)
  if redis.call('ZSCORE', waiting_key(queue, class, owner), id) then
    charge(queue, next_key(queue), '', class, class, cost)
    charge(queue, next_key(queue, class), class, class .. ':' .. owner, owner, cost)
  end
  unwait(id)
end

-- A job has taken so long: so long will others take. A small job counts little, because most of its time is no work.
local function learn(id, microseconds)
  local queue, _, _, cost = place(id)
  local known = redis.call('HMGET', flow_key(queue), 'took', 'costs', 'largest')
  local took = (1 - SMOOTHING) * tonumber(known[1] or '0') + microseconds / 1000000
  local costs = (1 - SMOOTHING) * tonumber(known[2] or '0') + math.max(cost, 1e-9)
  local largest = math.max(tonumber(known[3] or '0'), cost)
  redis.call('HSET', flow_key(queue), 'took', string.format('%.17g', took), 'costs', string.format('%.17g', costs),
    'largest', string.format('%.17g', largest), 'seconds', string.format('%.17g', took / costs))
end

-- Of a queue: seconds that a unit of cost takes (or -1), cost that has ever entered, and left; the largest job's that
-- was timed (or '').
local function flow(queue)
  local known = redis.call('HMGET', flow_key(queue), 'seconds', 'entered', 'left', 'largest')
  return tonumber(known[1] or '-1'), tonumber(known[2] or '0'), tonumber(known[3] or '0'), known[4] or ''
end
"""
