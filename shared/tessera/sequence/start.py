"""Start of a sequence engine: find or make the model, check it, load it, and report how long each part took."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec

from tessera.device.hardware import Device, choose
from tessera.errors import ModelLoadError
from tessera.hub import store
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.grammar.backends import check_backend, compiler_for
from tessera.sequence.grammar.queue import GrammarQueue
from tessera.sequence.runner.build import build_runner
from tessera.sequence.runner.sequence_runner import SequenceRunner
from tessera.sequence.speculation.draft_model import DraftModel
from tessera.settings.sequence import SequenceEngineSettings
from tessera.tokenizer.files import stop_ids_of, vocabulary_of
from tessera.wire.engine import Ready
from tessera_kernels import dispatch

DUMMY_NOTICE = "random weights of the model's shapes, for measuring speed: what it says means nothing"

logger = logging.getLogger(__name__)


def start_sequence_engine(
    model: str, settings: SequenceEngineSettings, models_dir: Path, process_started: float
) -> SequenceEngine:
    """Load `model` as the settings say.

    Args:
        model: Name of a starter, or path of a model's directory.
        settings: Device, pages, budgets and options.
        models_dir: Directory of the models that have names.
        process_started: `time.perf_counter()` at the start of the process, for the report.

    Raises:
        ModelLoadError: The model cannot be found, made, verified or loaded.
    """
    imported = time.perf_counter()
    found = store.ensure(model, models_dir, logger.info)
    card = found.card
    if {"embeddings", "classify", "rerank"} & set(card.tasks) and not {"chat", "completions"} & set(card.tasks):
        raise ModelLoadError(
            f"{model} is a {card.family}, an encoder, which generates no text; serve it beside a language model, by "
            f'`[[text.encoders]]` with `source = "{model}"`'
        )
    if settings.load == "dummy":
        card = msgspec.structs.replace(card, notice=DUMMY_NOTICE, quality=[])
    else:
        store.check(found)
    checked = time.perf_counter()
    check_backend(settings.grammar_backend)
    device = choose(settings.device, dtype=settings.dtype, threads=settings.threads)
    runner = _load_runner(
        found.path,
        device,
        settings,
        kv_cache_bytes=settings.kv_cache_bytes,
        host_cache_bytes=settings.host_cache_bytes,
        dummy=settings.load == "dummy",
    )
    report = {
        "imports_s": imported - process_started,
        "check_s": checked - imported,
        **runner.report,
    }
    directory, vocabulary = found.path, runner.vocabulary
    grammars = GrammarQueue(
        lambda: compiler_for(settings.grammar_backend, directory, vocabulary),
        vocabulary=vocabulary,
        stop_ids=stop_ids_of(directory),
        timeout_s=settings.grammar_timeout_s,
    )
    ready = Ready(device=device.name, cards=[card], directories=[str(found.path)], report=report)
    return SequenceEngine(
        runner, settings, ready, grammars, _load_drafter(runner, directory, settings, models_dir, device)
    )


def _load_runner(
    directory: Path,
    device: Device,
    settings: SequenceEngineSettings,
    *,
    kv_cache_bytes: int,
    host_cache_bytes: int = 0,
    dummy: bool = False,
) -> SequenceRunner:
    dispatch.disable_triton("the setting `kernels` is `reference`" if settings.kernels == "reference" else "")
    return build_runner(
        directory,
        device,
        page_size=settings.page_size,
        kv_cache_bytes=kv_cache_bytes,
        host_cache_bytes=host_cache_bytes,
        fused=settings.fuse_projections,
        weights=settings.weights,
        kv_cache_dtype=settings.kv_cache_dtype,
        dummy=dummy,
        graph_rows=settings.max_running if settings.graphs == "auto" and device.place.type == "cuda" else 0,
    )


def _load_drafter(
    target: SequenceRunner, directory: Path, settings: SequenceEngineSettings, models_dir: Path, device: Device
) -> DraftModel | None:
    """Load the draft model if the setting `speculation` is "draft".

    Raises:
        ModelLoadError: No draft model is named, or it has other tokens than the target model.
    """
    if settings.speculation != "draft":
        return None
    if not settings.draft_model:
        raise ModelLoadError('speculation is "draft", but no `draft_model` is named; name one or take "ngram"')
    found = store.ensure(settings.draft_model, models_dir, logger.info)
    store.check(found)
    if vocabulary_of(found.path) != vocabulary_of(directory):
        raise ModelLoadError(
            f"the draft model {settings.draft_model!r} has other tokens than the model it is to draft for; take a "
            "smaller model of the same family"
        )
    runner = _load_runner(found.path, device, settings, kv_cache_bytes=settings.draft_cache_bytes)
    return DraftModel(runner, max_tokens=settings.max_batch_tokens, vocabulary=target.vocabulary)
