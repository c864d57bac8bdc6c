"""What has to be true of jobs whatever happened to them, and a rampage of kills that it is true after.

`python -m tests.shared.jobs.job_checker --jobs 30 --seconds 60 --seed 1` kills at random moments for that long, then
checks.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.conftest import RedisServer
from tests.shared.jobs.job_stage import CLEAR_S, ENDED, STEPS_BETWEEN_CHECKPOINTS, Stage

KILL_SHARE = 0.25
"""Of the moments in which something may be killed: processes have to come up in between."""


def check(stage: Stage, *, frozen: bool = False) -> dict[str, int]:
    """What has to be true whatever happened. Returns how often what happened.

    Args:
        stage: whose jobs have all ended.
        frozen: whether processes were stopped and woken: what they do before they notice is not counted as repeated.
    """
    counts = {"completed": 0, "cancelled": 0, "attempts": 0, "repeated": 0}
    for video_id in stage.accepted:
        video = stage.get(video_id)
        assert video["status"] in ENDED, f"{video_id} has not ended"
        _check_states(stage, video_id)
        stored = {operation["sha256"] for operation in stage.operations(video_id, "stored")}
        if video["status"] == "completed":
            counts["completed"] += 1
            content = [stage.http.get(f"/v1/videos/{video_id}/content") for _ in range(2)]
            assert content[0].content == content[1].content
            assert content[0].headers["etag"].strip('"') in stored, "a result that nobody has stored"
        else:
            assert video["error"]["code"] == "cancelled", video
            assert video_id in stage.cancelled, "a job that nobody has cancelled"
            assert stage.http.get(f"/v1/videos/{video_id}/content").status_code == 409
            counts["cancelled"] += 1
            _check_cancel(stage, video_id)
        begun = stage.operations(video_id, "begin")
        assert [each["token"] for each in begun] == sorted({each["token"] for each in begun}), "tokens only grow"
        counts["attempts"] += len(begun)
        if not frozen:
            counts["repeated"] += _check_repeated(stage, video_id)
    return counts


def _heeds(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has come so far that it has a handler for SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _check_states(stage: Stage, video_id: str) -> None:
    """Queued, in progress, an end; back only to the queue, and never after the end; progress only grows between."""
    state, progress = "", 0
    allowed = {
        "": {"video.queued"},
        "video.queued": {"video.in_progress", "video.failed", "video.queued", "video.progress", "video.completed"},
        "video.in_progress": {"video.progress", "video.queued", "video.completed", "video.failed"},
    }
    events = stage.events(video_id)
    for name, shown in events:
        assert name in allowed.get(state, set()), f"{video_id}: {name} after {state}: {[each for each, _ in events]}"
        if name == "video.progress":
            assert shown["progress"] > progress, f"{video_id}: progress fell from {progress} to {shown['progress']}"
            progress = shown["progress"]
        else:
            state, progress = name, 0
    assert state in ("video.completed", "video.failed")


def _check_cancel(stage: Stage, video_id: str) -> None:
    """At most one step begins after a cancel, if its worker could hear of it."""
    at = stage.cancelled[video_id]
    later = [operation for operation in stage.operations(video_id, "step") if operation["at"] > at]
    if later and not _away(stage, at - CLEAR_S, later[-1]["at"]):
        assert len(later) <= 1, f"{video_id}: {len(later)} steps began after its cancel"


def _check_repeated(stage: Stage, video_id: str) -> int:
    """Between two attempts no more steps are lost than lie between two checkpoints, if these could be told."""
    repeated, last, begun_at = 0, 0, 0.0
    for operation in stage.operations(video_id, "begin", "stepped"):
        if operation["what"] == "stepped":
            last = max(last, operation["index"] + 1)
            continue
        lost = max(0, last - operation["index"])
        if not _away(stage, begun_at, operation["at"]):
            assert lost <= STEPS_BETWEEN_CHECKPOINTS, f"{video_id}: {lost} steps made again"
        repeated, last, begun_at = repeated + lost, operation["index"], operation["at"]
    return repeated


def _away(stage: Stage, begin: float, end: float) -> bool:
    return any(begin < until and since < end for since, until in stage.away)


def rampage(stage: Stage, *, jobs: int, seconds: float, seed: int) -> dict[str, int]:
    """Kill workers, servers and Redis with SIGKILL at random moments while jobs run; then let all end, and check."""
    chance = random.Random(seed)
    names = {"tessera_video": stage.serve, "tessera_gateway": lambda: stage.serve("tessera_gateway")}
    running = {name: start() for name, start in names.items()} | {f"worker {n}": stage.work() for n in range(2)}
    stage.ready()
    stage.through("tessera_gateway")
    stage.ready()
    kills = dict.fromkeys((*running, "redis"), 0)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds or len(stage.accepted) < jobs:
        if len(stage.accepted) < min(jobs, 2 + jobs * passed / seconds):
            video_id = stage.create(steps=chance.randint(10, 60))
            if chance.random() < 0.2:
                time.sleep(chance.uniform(0, 0.5))
                stage.cancel(video_id)
        time.sleep(chance.uniform(0, 0.3))
        if chance.random() < KILL_SHARE:
            victim = chance.choice(list(kills))
            kills[victim] += 1
            if victim == "redis":
                with stage.without_redis():
                    time.sleep(chance.uniform(0, 0.5))
                continue
            running[victim].kill()
            running[victim].wait()
            running[victim] = names.get(victim, stage.work)()
    stage.ended(within_s=120)
    found = check(stage) | {f"kills of {victim}": count for victim, count in kills.items()}
    # The last one killed may still be starting.
    stage.until(lambda: all(_heeds(process) for process in running.values()), "processes that end when asked to")
    for name in running:
        running[name].send_signal(signal.SIGTERM)
    statuses = {name: process.wait(30) for name, process in running.items()}
    assert set(statuses.values()) == {0}, statuses
    return found


def main() -> None:
    """One run; see the module."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=30)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    redis = RedisServer(Path(tempfile.mkdtemp(prefix="tessera-")))
    redis.start()
    stage = Stage(redis)
    try:
        print(rampage(stage, jobs=options.jobs, seconds=options.seconds, seed=options.seed))
    finally:
        stage.close()
        redis.kill()
        shutil.rmtree(redis.data, ignore_errors=True)


if __name__ == "__main__":
    main()
