"""Responses with `background: true`: durable jobs on the queue, done by a real worker process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import httpx
import openai
import pytest
import redis
from tests.response_streams import check_order, parsed
from tests.scripted_model import MODEL, ScriptedModel
from tests.waiting import until

from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.jobs import JobSettings
from tessera.settings.suite import RedisSettings, SuiteSettings
from tessera.settings.tree import Settings

pytestmark = pytest.mark.e2e
KEYS = ["one", "two"]


class Worker:
    """A running `python -m tessera_gateway.worker`."""

    def __init__(self, folder, redis_url: str, upstream: str) -> None:
        self.config = folder / "tessera.toml"
        self.config.write_text(
            f'[suite]\ndata = "{folder}"\n[redis]\nurl = "{redis_url}"\n'
            "[jobs]\nlease_s = 1.0\nreap_every_s = 0.2\nbackoff_s = 0.1\nmax_attempts = 2\n"
            f'[[gateway.upstreams]]\nname = "scripted"\nurl = "{upstream}"\n[gateway]\nservices = []\n'
        )
        self.log = folder / "worker.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> Worker:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tessera_gateway.worker"],
                env={**environment, "TESSERA_CONFIG": str(self.config)},
                stdout=output,
                stderr=output,
            )
        return self

    def end(self, *, kill: bool = False) -> None:
        assert self.process is not None
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait(20)


@pytest.fixture
def scripted():
    server = ScriptedModel().start()
    yield server
    server.close()


@pytest.fixture
def gateway(gateway_of, redis_server, scripted, tmp_path):
    settings = Settings(
        gateway=GatewaySettings(
            services=[],
            upstreams=[UpstreamSettings(name="scripted", url=scripted.url)],
            aliases={},
            api_keys=KEYS,
        ),
        redis=RedisSettings(url=redis_server.url, timeout_s=0.5),
        suite=SuiteSettings(data=str(tmp_path)),
        jobs=JobSettings(lease_s=1.0, reap_every_s=0.2, backoff_s=0.1, max_attempts=2),
    )
    redis.Redis.from_url(redis_server.url).flushall()
    return gateway_of(settings).knows(MODEL)


@pytest.fixture
def worker(redis_server, scripted, tmp_path):
    made = Worker(tmp_path, redis_server.url, scripted.url)
    yield made
    with contextlib.suppress(AssertionError):
        made.end()


@pytest.fixture
def client(gateway):
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="one", max_retries=0, timeout=60)


def ended(client, identity: str, worker) -> object:
    def look():
        found = client.responses.retrieve(identity)
        return found if found.status not in {"queued", "in_progress"} else None

    return until(look, 60, what=lambda: worker.log.read_text()[-3000:], every_s=0.05)


def test_a_response_is_made_by_a_worker_and_kept(client, gateway, worker, scripted) -> None:
    first = client.responses.create(model=MODEL, input="zero")
    queued = client.responses.create(
        model=MODEL, input="one", background=True, metadata={"k": "v"}, previous_response_id=first.id
    )
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    worker.start()
    done = ended(client, queued.id, worker)
    assert (done.status, done.output_text, done.metadata) == ("completed", "3: one", {"k": "v"})
    assert (done.id, done.background, done.previous_response_id) == (queued.id, True, first.id)
    assert scripted.requests[-1][2]["store"] is False
    follow = client.responses.create(model=MODEL, input="two", previous_response_id=done.id)
    assert follow.output_text == "5: two"
    assert client.responses.cancel(done.id).status == "completed"
    with pytest.raises(openai.NotFoundError):
        client.with_options(api_key="two").responses.retrieve(done.id)

    # A stream is watched, left, and gone on with behind the last event that was seen.
    with client.responses.create(model=MODEL, input="slow", background=True, stream=True) as stream:
        for event in stream:
            if event.type == "response.created":
                identity = event.response.id
            if event.type == "response.output_text.delta":
                break
    seen = event.sequence_number
    scripted.go_on.set()
    rest = list(client.responses.retrieve(identity, stream=True, starting_after=seen))
    assert [one.sequence_number for one in rest] == list(range(seen + 1, seen + 1 + len(rest)))
    assert rest[-1].type == "response.completed"
    headers = {"authorization": "Bearer one"}
    whole = httpx.get(f"{gateway.url}/v1/responses/{identity}?stream=true", headers=headers, timeout=20)
    final = check_order(parsed(whole.content))
    assert final == client.responses.retrieve(identity).to_dict(mode="json") | {"output": final["output"]}

    # An upstream that refuses ends the response; one that is overloaded is asked again first.
    refused = client.responses.create(model=MODEL, input="refuse 422", background=True)
    assert ended(client, refused.id, worker).error.message == "refused as asked"
    before = len(scripted.requests)
    overloaded = client.responses.create(model=MODEL, input="refuse 503", background=True)
    assert ended(client, overloaded.id, worker).status == "failed"
    assert len(scripted.requests) == before + 2

    # Without a stream at its creation there are no events.
    with pytest.raises(openai.BadRequestError, match="stream: true"):
        client.responses.retrieve(refused.id, stream=True)


def test_a_cancelled_response_stops_its_upstream(client, gateway, worker, scripted) -> None:
    queued = client.responses.create(model=MODEL, input="never", background=True)
    assert client.responses.cancel(queued.id).status == "cancelled"
    worker.start()
    running = client.responses.create(model=MODEL, input="slow", background=True, stream=True)
    identity = next(iter(running)).response.id
    assert scripted.began.wait(60), worker.log.read_text()
    assert client.responses.cancel(identity).status == "cancelled"
    assert scripted.left.wait(20)
    assert client.responses.cancel(identity).status == "cancelled"
    last = list(running)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert client.responses.retrieve(identity).status == "cancelled"
    assert all("never" not in str(body) for _, _, body in scripted.requests)

    # A deleted one stops, too.
    scripted.left.clear()
    deleted = client.responses.create(model=MODEL, input="slow", background=True)
    until(lambda: len(scripted.requests) == 2, what="the second request")
    client.responses.delete(deleted.id)
    assert scripted.left.wait(20)


def test_a_response_whose_worker_is_killed_is_made_again(client, gateway, worker, scripted) -> None:
    worker.start()
    with client.responses.stream(model=MODEL, input="slow", background=True) as stream:
        kinds = []
        killed = False
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta" and not killed:
                killed = True
                worker.end(kill=True)
                scripted.go_on.set()
                worker.start()
        final = stream.get_final_response()
    assert final.output_text == "piece 1: slow"
    assert kinds.count("response.output_item.done") == 2
    assert final.status == "completed"
    assert len(scripted.requests) == 2


def test_a_job_of_a_worker_that_is_told_to_end_goes_to_the_next(client, worker, scripted) -> None:
    worker.start()
    queued = client.responses.create(model=MODEL, input="slow", background=True)
    assert scripted.began.wait(60), worker.log.read_text()
    began = time.monotonic()
    worker.end()
    assert time.monotonic() - began < 15
    scripted.go_on.set()
    worker.start()
    assert ended(client, queued.id, worker).output_text == "piece 1: slow"


def test_background_is_refused_where_no_worker_makes_responses(gateway_of, redis_server, scripted, tmp_path) -> None:
    settings = Settings(
        gateway=GatewaySettings(
            services=[],
            upstreams=[UpstreamSettings(name="scripted", url=scripted.url)],
            aliases={},
            response_workers=0,
        ),
        redis=RedisSettings(url=redis_server.url),
        suite=SuiteSettings(data=str(tmp_path)),
    )
    gateway = gateway_of(settings).knows(MODEL)
    body = {"model": MODEL, "input": "x", "background": True}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=body)
    assert answer.status_code == 400
    assert "response_workers" in answer.json()["error"]["message"]
