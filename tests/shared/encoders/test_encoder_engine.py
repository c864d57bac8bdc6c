"""The encoder engine's queue: fair turns, budgets, cancels, deadlines and faults, over a stand-in for a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tessera.encoders.engine import EncoderEngine
from tessera.encoders.turns import EncodeRequest, Turns
from tessera.engine.waits import WaitMeter
from tessera.errors import InvalidRequestError, OverloadedError
from tessera.settings.encoders import EncoderEngineSettings
from tessera.wire.engine import Encode, Encoded, EncoderText, Failed, Generate, Ready, Sampling
from tessera.wire.models import Card


class Sums:
    """Stands in for an encoder: the row of a text is the sum of its tokens; the token 13 breaks a whole batch."""

    def __init__(self, name: str) -> None:
        self.card = Card(
            id=name, family="Sums", tasks=["embeddings"], source="test", parameters=0, licence="none", context_length=50
        )
        self.batches: list[list[EncoderText]] = []

    def run(self, texts: Sequence[EncoderText]) -> torch.Tensor:
        self.batches.append(list(texts))
        if any(13 in text.token_ids for text in texts):
            raise RuntimeError("the device ran out of memory")
        return torch.tensor([[float("nan") if 7 in text.token_ids else float(sum(text.token_ids))] for text in texts])


def engine_of(*encoders: Sums, **settings: int) -> EncoderEngine:
    cards = [one.card for one in encoders]
    ready = Ready(device="cpu", cards=cards, directories=["" for _ in cards], report={})
    return EncoderEngine(encoders, EncoderEngineSettings(**settings), ready)  # type: ignore[arg-type]


def encode(name: str, *lengths: int, tenant: str = "", token: int = 1, **more: object) -> Encode:
    texts = [EncoderText([token] * length) for length in lengths]
    return Encode(request_id=name, model=more.pop("model", 0), texts=texts, tenant=tenant, **more)  # type: ignore[arg-type]


def values(answer: object) -> list[float]:
    assert isinstance(answer, Encoded), answer
    return np.frombuffer(answer.rows.data, "<f4").tolist()


def all_answers(engine: EncoderEngine) -> dict[str, object]:
    found: dict[str, object] = {}
    while engine.has_work():
        found |= {answer.request_id: answer for answer in engine.step()}  # type: ignore[union-attr]
    return found


def test_a_requests_texts_are_answered_together_in_their_order() -> None:
    encoder = Sums("a")
    engine = engine_of(encoder, max_batch_tokens=6)
    engine.submit(encode("one", 5, 1, 3, 4))
    engine.submit(encode("two", 2))
    found = all_answers(engine)
    assert values(found["one"]) == [5, 1, 3, 4]
    assert values(found["two"]) == [2]
    assert all(sum(len(text.token_ids) for text in batch) <= 6 for batch in encoder.batches)


def test_a_text_longer_than_the_budget_has_a_step_of_its_own() -> None:
    encoder = Sums("a")
    engine = engine_of(encoder, max_batch_tokens=4)
    engine.submit(encode("one", 9))
    engine.submit(encode("two", 2))
    assert values(all_answers(engine)["one"]) == [9]
    assert [len(batch) for batch in encoder.batches] == [1, 1]


def test_a_request_of_one_text_does_not_wait_for_one_of_a_thousand() -> None:
    engine = engine_of(Sums("a"), max_batch_tokens=20)
    engine.submit(encode("many", *[5] * 1000))
    list(engine.step())
    engine.submit(encode("one", 5))
    assert "one" in {answer.request_id for answer in engine.step()}  # type: ignore[union-attr]


def test_tenants_share_by_tokens_not_by_requests() -> None:
    turns = Turns()
    for number in range(20):
        turns.add(EncodeRequest(encode(f"a{number}", *[10] * 50, tenant="greedy"), number))
    turns.add(EncodeRequest(encode("b", *[10] * 50, tenant="modest"), 99))
    served: Counter[str] = Counter()
    for _ in range(20):
        for share in turns.take(40):
            served[share.request.message.tenant] += share.end - share.begin
    assert served == {"greedy": 40, "modest": 40}


def test_who_comes_back_has_saved_nothing_up() -> None:
    turns = Turns()
    turns.add(EncodeRequest(encode("a", *[10] * 100, tenant="steady"), 0))
    for _ in range(10):
        turns.take(40)
    turns.add(EncodeRequest(encode("b", *[10] * 100, tenant="late"), 1))
    taken = Counter(share.request.message.tenant for _ in range(5) for share in turns.take(20))
    assert taken["steady"] >= 4


def test_priorities_come_first_and_steps_have_one_model() -> None:
    first, second = Sums("a"), Sums("b")
    engine = engine_of(first, second, max_batch_tokens=100)
    engine.submit(encode("low", 3, priority=5))
    engine.submit(encode("other", 3, model=1, priority=1))
    engine.submit(encode("same", 4, model=1, priority=1))
    assert {answer.request_id for answer in engine.step()} == {"other", "same"}  # type: ignore[union-attr]
    assert not first.batches
    assert values(all_answers(engine)["low"]) == [3]


def test_a_cancelled_request_is_not_computed_any_further() -> None:
    encoder = Sums("a")
    engine = engine_of(encoder, max_batch_tokens=4)
    engine.submit(encode("one", *[4] * 10))
    list(engine.step())
    engine.cancel("one")
    engine.cancel("absent")
    assert not engine.has_work()
    assert all_answers(engine) == {}
    assert len(encoder.batches) == 1


def test_a_request_after_its_deadline_is_ended() -> None:
    engine = engine_of(Sums("a"))
    engine.submit(encode("late", 3, deadline_s=1e-9))
    engine.submit(encode("fine", 3, deadline_s=60.0))
    found = all_answers(engine)
    assert isinstance(found["late"], Failed)
    assert found["late"].error.code == "deadline_exceeded"
    assert values(found["fine"]) == [3]


def test_a_fault_of_one_request_ends_no_other() -> None:
    engine = engine_of(Sums("a"))
    engine.submit(encode("fine", 3))
    engine.submit(encode("breaks", 2, token=13))
    engine.submit(encode("overflows", 2, token=7))
    found = all_answers(engine)
    assert values(found["fine"]) == [3]
    assert isinstance(found["breaks"], Failed)
    assert isinstance(found["overflows"], Failed)
    assert "not finite" in found["overflows"].error.message


def test_a_full_queue_and_texts_that_do_not_fit_are_refused() -> None:
    engine = engine_of(Sums("a"), max_waiting=1)
    for message in (encode("empty"), encode("none", 0), encode("long", 51)):
        with pytest.raises(InvalidRequestError, match="1 to 50 tokens"):
            engine.submit(message)
    with pytest.raises(InvalidRequestError, match="Generate"):
        engine.submit(Generate(request_id="g", token_ids=[1], sampling=Sampling(max_tokens=1)))
    engine.submit(encode("one", 3))
    with pytest.raises(OverloadedError) as refused:
        engine.submit(encode("two", 3))
    assert refused.value.retry_after


def test_a_full_queue_still_takes_another_keys_request() -> None:
    engine = engine_of(Sums("a"), max_waiting=2)
    engine.submit(encode("one", 3, tenant="many"))
    engine.submit(encode("two", 3, tenant="many"))
    with pytest.raises(OverloadedError):
        engine.submit(encode("three", 3, tenant="many"))
    engine.submit(encode("new", 3, tenant="new"))
    with pytest.raises(OverloadedError):
        engine.submit(encode("newer", 3, tenant="new"))
    assert set(all_answers(engine)) == {"one", "two", "new"}


def test_who_is_refused_is_told_the_pace_of_the_queue() -> None:
    now = 0.0
    engine = engine_of(Sums("a"), max_waiting=4, max_batch_tokens=4)
    engine._meter = WaitMeter(lambda: now)
    for number in range(24):
        engine.submit(encode(f"r{number}", 4))
        if number >= 3:
            now += 3.0
            assert len(list(engine.step())) == 1
    engine.submit(encode("last", 4))
    with pytest.raises(OverloadedError, match="about 12 s") as refused:
        engine.submit(encode("too many", 4))
    assert refused.value.retry_after == pytest.approx(12, rel=0.1)


def test_metrics_count_steps_tokens_and_the_queue() -> None:
    engine = engine_of(Sums("a"), max_batch_tokens=4)
    engine.submit(encode("one", 4, 4))
    engine.submit(encode("two", 4))
    list(engine.step())
    found = engine.metrics()
    assert (found["requests_running"], found["requests_waiting"], found["batch_tokens"]) == (1, 1, 4)
    all_answers(engine)
    found = engine.metrics()
    assert (found["steps_total"], found["computed_tokens_total"], found["encoded_texts_total"]) == (3, 12, 3)
    assert found["requests_running"] == found["requests_waiting"] == 0
