"""What a service makes of its engine's model: once per model, also when the engine comes back with another."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from tessera.engine.host import EngineHost, directory_of
from tessera.errors import ModelLoadError, ModelNotFoundError, UnavailableError
from tessera.wire.engine import Ready
from tessera.wire.models import Card


def ready(name: str) -> Ready:
    card = Card(id=name, family="f", tasks=["chat"], source="s", parameters=1, licence="l", created=1)
    return Ready(device="cpu", cards=[card], directories=[f"/models/{name}"], report={})


@pytest.fixture
def built() -> list[str]:
    return []


@pytest.fixture
def host(built) -> EngineHost[str]:
    def build(found: Ready, _) -> str:
        if found.cards[0].id == "damaged":
            raise ModelLoadError("no template")
        built.append(str(directory_of(found)))
        return built[-1]

    return EngineHost("text", "tessera_text.worker", CollectorRegistry(), build)


def test_tools_are_made_once_and_stay_while_the_engine_restarts(host, built):
    with pytest.raises(UnavailableError, match="still loading"):
        asyncio.run(host.tools("one"))
    host.engine.ready = ready("one")
    assert asyncio.run(host.tools("one")) == asyncio.run(host.tools("one")) == "/models/one"
    host.engine.ready = None
    assert asyncio.run(host.tools("one")) == "/models/one"
    host.engine.ready = ready("one")
    assert asyncio.run(host.tools("one")) == "/models/one"
    assert built == ["/models/one"]


def test_an_engine_that_comes_back_with_another_model_has_its_tokenizer(host):
    host.engine.ready = ready("one")
    asyncio.run(host.tools("one"))
    host.engine.ready = ready("two")
    assert asyncio.run(host.tools("two")) == "/models/two"
    with pytest.raises(ModelNotFoundError):
        asyncio.run(host.tools("one"))


def test_it_is_ready_when_its_tools_are(host, built):
    host.engine.ready = ready("damaged")
    assert asyncio.run(host.states()) == {"engine": "failed"}
    host.engine.ready = ready("one")
    assert asyncio.run(host.states()) == {"engine": "ok"}
    assert built == [asyncio.run(host.tools("one"))]


def test_tools_that_cannot_be_made_are_tried_again(host):
    host.engine.ready = ready("damaged")
    with pytest.raises(ModelLoadError):
        asyncio.run(host.tools("damaged"))
    host.engine.ready = ready("one")
    assert asyncio.run(host.tools("one")) == "/models/one"
