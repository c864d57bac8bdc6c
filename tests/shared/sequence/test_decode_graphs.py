"""Decode steps on padded static inputs and as graphs: the same tokens, and nothing read but what stays in its place.

There is a GPU in few places, so graphs are made here by recorders with CUDA's rules: `Again` runs the captured function
once more, which must know nothing but its static inputs; `Tape` repeats the very operations on the very tensors,
without the Python around them, and refuses what waits for the device. Tests of real graphs are at the end.
"""

from __future__ import annotations

import itertools
import logging
import random
from typing import Any

import pytest
import torch
import transformers
from tests.shared.sequence.test_engine import CLASSES, SMALL
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tessera.cache.transfers import Copy
from tessera.device.hardware import Device, choose
from tessera.errors import ModelLoadError
from tessera.models import attention
from tessera.sequence import start as sequence_start
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner import build
from tessera.sequence.runner.build import build_runner
from tessera.sequence.runner.sequence_runner import SequenceRunner
from tessera.sequence.runner.step_inputs import StaticInputs, padded_sizes
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Embed, Embedded, Generate, GeneratedTokens, Ready, Sampling
from tessera_kernels.paged_attention import reference
from tessera_kernels.rms_norm import cpu

PAGE = 4
ROWS = 6
PROMPTS = [[5, 9, 33, 7, 50], [11] * 3 + list(range(20, 60)), [60, 3], list(range(30, 47)), [60, 3, 9]]


class Again:
    """Runs the captured function once more: what it reads is what it was given when it was captured."""

    def __init__(self) -> None:
        self.captured = 0

    def graph(self, run):
        run()
        self.captured += 1
        return run

    def working_bytes(self, run) -> int:
        run()
        return 1 << 20


class Tape(Again):
    """Repeats the operations of the captured function on the tensors of then, as a CUDA graph does."""

    def graph(self, run):
        run()
        recorder = Recorder()
        with recorder:
            run()
        self.captured += 1
        return recorder.replay


ASKS = {"_local_scalar_dense", "nonzero", "item", "equal", "masked_select", "_unique2"}
"""Operations whose outcome the host needs, which no graph can give it."""


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ASKS:
            raise RuntimeError(f"{name} waits for the device")
        out = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, tensors(out)))
        return out

    def replay(self) -> None:
        for function, args, kwargs, places in self.operations:
            for place, made in zip(places, tensors(function(*args, **kwargs)), strict=True):
                if place.data_ptr() != made.data_ptr():  # else it is a view, or was written where it stood
                    place.copy_(made)


def tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def blind_attention(query_TQD, cache, ragged, *, scaling, sliding_window, softcap, sinks_Q):
    """Decoding attention that never looks at how long contexts are, as the Triton kernel's launcher does not."""
    size, rows = cache.key_PSHD.shape[1], len(ragged.query_counts)
    keys, values = (
        reference._gathered(stored, scale, ragged.page_table_BM, query_TQD.dtype)
        for stored, scale in ((cache.key_PSHD, cache.key_scale_PSH), (cache.value_PSHE, cache.value_scale_PSH))
    )
    position_L = torch.arange(ragged.page_table_BM.shape[1] * size)
    seen_BL = position_L < ragged.context_B[:, None]
    values = values.masked_fill(~seen_BL[..., None, None], 0)
    if sliding_window is not None:
        seen_BL = seen_BL & (position_L >= ragged.context_B[:, None] - sliding_window)
    query_BNQD = query_TQD.view(rows, 1, *query_TQD.shape[1:])
    return reference._attend(query_BNQD, keys, values, seen_BL[:, None], scaling, softcap, sinks_Q).flatten(0, 1)


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory):
    made = {}

    def make(name: str):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            config = transformers.AutoConfig.for_model(name, **(SMALL | CLASSES[name]))
            torch.manual_seed(3)
            transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(made[name])
        return made[name]

    return make


def runner_of(directory, capture=None, device=None, **changes) -> SequenceRunner:
    settings = {"page_size": PAGE, "kv_cache_bytes": 1 << 20, "weights": "stored"} | changes
    device = device or choose("cpu", threads=1)
    return build_runner(directory, device, graph_rows=ROWS if capture else 0, capture=capture, **settings)


def engine_of(runner: SequenceRunner, **changes) -> SequenceEngine:
    settings = SequenceEngineSettings(**({"max_batch_tokens": 64, "page_size": runner.page_size} | changes))
    return SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}))


def messages(**more) -> list[Generate]:
    """Greedy and seeded ones that end at different times, so that batches have many sizes."""
    made = []
    for index, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=4 + 5 * index, temperature=0.9 * (index % 2), seed=index, top_p=0.9, **more)
        made.append(Generate(request_id=str(index), token_ids=prompt, sampling=sampling))
    return made


def texts(engine: SequenceEngine, asked: list[Generate]) -> dict[str, list[int]]:
    for message in asked:
        engine.submit(message)
    found: dict[str, list[int]] = {}
    while engine.has_work():
        for answer in engine.step():
            assert isinstance(answer, GeneratedTokens), answer
            found.setdefault(answer.request_id, []).extend(answer.token_ids)
    engine.scheduler.check_integrity()
    assert engine.integrity_faults == 0
    assert engine.scheduler.cache.available == engine.runner.pages
    return found


def test_sizes_are_those_of_the_field_and_end_at_the_most_sequences():
    assert padded_sizes(1) == [1]
    assert padded_sizes(6) == [1, 2, 4, 6]
    assert padded_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
    assert padded_sizes(300)[-5:] == [248, 256, 272, 288, 300]
    for most in (1, 2, 3, 8, 9, 255, 256, 257, 272, 1000):
        sizes = padded_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        assert max(later - size for size, later in itertools.pairwise(sizes)) <= 16 if most > 1 else True


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_padding_changes_no_token_of_any_kind_of_attention(name, directory_of):
    plain, padded = runner_of(directory_of(name)), runner_of(directory_of(name), Again())
    for cache in padded.storage.caches:
        for tensor in cache.tensors:
            tensor[padded.pages :] = float("nan")  # what no request ever has
    assert texts(engine_of(padded), messages()) == texts(engine_of(plain), messages())
    assert padded.graph_steps > 20
    assert plain.graph_steps == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_operations_of_a_decode_step_alone_say_the_same_again(name, directory_of, monkeypatch):
    """That is what a graph is: no Python of a step is run again, and no number of it is made anew."""
    plain = texts(engine_of(runner_of(directory_of(name))), messages())
    own = attention.paged_attention

    def attend(query, cache, ragged, **options):
        decodes = ragged.page_table_BM.shape[1] * PAGE == SMALL["max_position_embeddings"]
        return (blind_attention if decodes else own)(query, cache, ragged, **options)

    monkeypatch.setattr(attention, "paged_attention", attend)
    monkeypatch.setattr(cpu, "suited", lambda *_: False)  # compiled code is no operation of torch
    taped = runner_of(directory_of(name), Tape())
    assert texts(engine_of(taped), messages()) == plain
    assert taped.graph_steps > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "fp8"},
        {"page_size": 1},
        {"page_size": 64},
        {"fused": False},
        {"weights": "int8", "page_size": 16},
        {"kv_cache_bytes": 56 * 512, "host_cache_bytes": 1 << 16},
    ],
    ids=str,
)
def test_padding_changes_no_token_whatever_the_cache_is(changes, directory_of):
    found = []
    for capture in (None, Again()):
        engine = engine_of(runner_of(directory_of("llama"), capture, **changes))
        found.append([texts(engine, messages()) for _ in range(2)])
        if "host_cache_bytes" in changes:
            assert engine.metrics()["prefix_cache_hit_tokens_host_total"] > 0
    assert found[0] == found[1]


@pytest.mark.parametrize("changes", [{"speculation": "ngram"}, {"max_batch_tokens": 3}, {"max_running": 9}], ids=str)
def test_steps_that_no_graph_fits_run_as_they_did(changes, directory_of):
    """Guesses, prompts in chunks beside decodes, more sequences than there are rows, scored prompts, embeddings."""
    asked = [
        *messages(),
        *(
            Generate(request_id=f"more {n}", token_ids=[n, 4, n, 4, n], sampling=Sampling(max_tokens=9))
            for n in range(5)
        ),
        Generate(request_id="scored", token_ids=PROMPTS[1], sampling=Sampling(max_tokens=3, prompt_logprobs=1)),
    ]
    found = []
    for capture in (None, Again()):
        runner = runner_of(directory_of("qwen3"), capture)
        found.append(texts(engine_of(runner, **changes), asked))
    assert found[0] == found[1]
    assert runner.graph_steps > 0


def test_an_embedding_of_one_token_is_no_decode(directory_of):
    vectors = []
    for capture in (None, Again()):
        runner = runner_of(directory_of("llama"), capture)
        engine = engine_of(runner)
        engine.submit(Embed(request_id="e", token_ids=[7]))
        (answer,) = engine.step()
        assert isinstance(answer, Embedded)
        vectors.append(answer.vector.data)
        assert runner.graph_steps == 0
    assert vectors[0] == vectors[1]


def test_a_padded_step_writes_its_own_slots_and_the_padding_pages_alone(directory_of):
    runner = runner_of(directory_of("llama"), Again())
    requests = [
        SequenceRequest(str(row), list(range(5, 5 + 3 * row + 1)), Sampling(max_tokens=3), pages=[9 - 3 * row, 40, 41])
        for row in range(3)
    ]
    before = [[tensor.clone() for tensor in cache.tensors] for cache in runner.storage.caches]
    runner.run(Batch([Chunk(request, len(request.token_ids) - 1, 1) for request in requests], [Copy(1, 2)]))
    assert runner.graph_steps == 1
    written = {request.pages[3 * row // PAGE] * PAGE + 3 * row % PAGE for row, request in enumerate(requests)}
    for cache, old in zip(runner.storage.caches, before, strict=True):
        for tensor, was in zip(cache.tensors, old, strict=True):
            changed = (tensor != was).flatten(2).any(dim=-1).flatten().nonzero()[:, 0].tolist()
            assert {slot for slot in changed if slot < runner.pages * PAGE} == written
            # Three rows padded to four: one row of padding, at the place of its own.
            padding = {slot - runner.pages * PAGE for slot in changed if slot >= runner.pages * PAGE}
            assert padding <= {3}


def test_inputs_stay_where_they_are_and_padding_never_writes_twice_to_one_place():
    dice = random.Random(3)
    inputs = StaticInputs(7, width=12, page_size=2, padding_page=100, device=torch.device("cpu"))
    assert StaticInputs.padding_pages(7, 2) == 4
    addresses = [tensor.data_ptr() for tensor in inputs.tensors]
    for _ in range(50):
        count = dice.randint(1, 7)
        size = dice.randint(count, 7)
        free = dice.sample(range(100), 99)
        chunks = []
        for name in range(count):
            length = dice.randint(1, 24)
            pages = [free.pop() for _ in range(-(-length // 2) + dice.randint(0, 2))]
            tokens = [dice.randrange(97) for _ in range(length)]
            chunks.append(Chunk(SequenceRequest(str(name), tokens, Sampling(max_tokens=1), pages=pages), length - 1, 1))
        inputs.write(Batch(chunks), size)
        given = inputs.view(size)
        assert [tensor.data_ptr() for tensor in inputs.tensors] == addresses
        slots, ragged = given.batch.slots_T.tolist(), given.batch.ragged
        assert len(set(slots)) == size
        assert all(200 <= slot < 208 for slot in slots[count:])
        assert ragged.query_counts == [1] * size
        assert ragged.page_table_BM.is_contiguous()
        for row, chunk in enumerate(chunks):
            used = chunk.start // 2 + 1
            assert given.ids_1T[0, row] == chunk.request.token_ids[-1]
            assert given.position_1T[0, row] == chunk.start
            assert ragged.context_B[row] == chunk.start + 1
            assert ragged.page_table_BM[row, :used].tolist() == chunk.request.pages[:used]
            assert slots[row] == chunk.request.pages[used - 1] * 2 + chunk.start % 2
        assert ragged.context_B[count:].tolist() == [1] * (size - count)
        assert all(100 <= page < 104 for page in ragged.page_table_BM[count:, 0].tolist())


class Refusing(Again):
    def graph(self, run):
        if self.captured == 2:
            try:
                raise RuntimeError("operation not permitted when stream is capturing\nCompile with …")
            finally:
                raise RuntimeError("capture was broken off")
        return super().graph(run)


def test_a_model_that_cannot_be_captured_runs_without_graphs_and_the_log_says_why(directory_of, caplog):
    refused = runner_of(directory_of("llama"), Refusing())
    assert "not captured as CUDA graphs: operation not permitted when stream is capturing" in caplog.text
    assert "Compile with" not in caplog.records[-1].getMessage()
    expected = texts(engine_of(runner_of(directory_of("llama"))), messages())
    assert texts(engine_of(refused), messages()) == expected
    assert refused.graph_steps == 0


def test_what_asks_the_device_while_it_is_captured_is_refused(directory_of, monkeypatch, caplog):
    def attend(query, cache, ragged, **options):
        return reference.paged_attention(query, cache, ragged, **options)  # looks at the longest context

    monkeypatch.setattr(attention, "paged_attention", attend)
    refused = runner_of(directory_of("llama"), Tape())
    assert "item waits for the device" in caplog.text
    assert texts(engine_of(refused), messages()).keys() == {str(index) for index in range(len(PROMPTS))}
    assert refused.graph_steps == 0


def test_memory_for_graphs_is_known_before_the_cache_is_made(directory_of, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    whole = runner_of(directory_of("llama"), kv_cache_bytes=1 << 20)
    free = 34 << 20
    monkeypatch.setattr(build, "free_bytes", lambda _: free)
    made = runner_of(directory_of("llama"), Again(), kv_cache_bytes=1 << 20)
    # Four graphs of 8 MiB, one of memory to work in, logits and two pages of padding.
    assert 0.8 * whole.pages < made.pages < whole.pages
    assert "are expected to take 33 MiB" in caplog.text
    assert "no more is free" in caplog.text
    free = 33 << 20
    with pytest.raises(ModelLoadError, match=r"up to 6 sequences as CUDA graphs take 33 MiB.*max_running"):
        runner_of(directory_of("llama"), Again())


@pytest.mark.parametrize(("place", "graphs", "rows"), [("cuda", "auto", 5), ("cuda", "off", 0), ("cpu", "auto", 0)])
def test_the_device_and_the_setting_say_whether_there_are_graphs(place, graphs, rows, tmp_path, monkeypatch):
    said = {}
    monkeypatch.setattr(sequence_start, "build_runner", lambda *_, **options: said.update(options))
    settings = SequenceEngineSettings(graphs=graphs, max_running=5)
    device = Device(torch.device(place), torch.float32, place)
    sequence_start._load_runner(tmp_path, device, settings, kv_cache_bytes=1)
    assert said["graph_rows"] == rows


gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("graphed", [pytest.param(True, marks=gpu)])
def test_on_a_gpu_graphs_say_what_single_launches_do(name, graphed, directory_of, caplog):
    device = choose("cuda", dtype="float32")
    plain = build_runner(directory_of(name), device, page_size=16, kv_cache_bytes=1 << 20)
    made = build_runner(directory_of(name), device, page_size=16, kv_cache_bytes=1 << 20, graph_rows=ROWS)
    captured = "not captured as CUDA graphs" not in caplog.text
    assert captured or name == "gpt_oss", (
        caplog.text
    )  # its experts are Transformers' own, which may wait for the device
    assert texts(engine_of(made), messages()) == texts(engine_of(plain), messages())
    assert (made.graph_steps > 20) == captured
