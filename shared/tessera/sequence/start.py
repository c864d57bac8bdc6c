"""Starting a sequence engine: find or make the model, check it, load it, say how long each part took."""

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

DUMMY = "random weights of the model's shapes, for measuring speed: what it says means nothing"

logger = logging.getLogger(__name__)


def start_sequence_engine(
    model: str, settings: SequenceEngineSettings, models_dir: Path, process_started: float
) -> SequenceEngine:
    """Load `model` as the settings say.

    Args:
        model: a starter's name or a directory's path.
        settings: device, pages, budgets.
        models_dir: where named models live.
        process_started: `time.perf_counter()` when the process began, for the report.

    Raises:
        ModelLoadError: the model cannot be found, made, verified or loaded.
    """
    imported = time.perf_counter()
    found = store.ensure(model, models_dir, logger.info)
    card = found.card
    if settings.load == "dummy":
        card = msgspec.structs.replace(card, notice=DUMMY, quality=[])
    else:
        store.check(found)
    checked = time.perf_counter()
    check_backend(settings.grammar_backend)
    device = choose(settings.device, dtype=settings.dtype, threads=settings.threads)
    runner = _runner(
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
    return SequenceEngine(runner, settings, ready, grammars, _draft(runner, directory, settings, models_dir, device))


def _runner(
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


def _draft(
    target: SequenceRunner, directory: Path, settings: SequenceEngineSettings, models_dir: Path, device: Device
) -> DraftModel | None:
    """The draft model, if one is asked for.

    Raises:
        ModelLoadError: none is named, or it has other tokens than the target.
    """
    if settings.speculation != "draft":
        return None
    if not settings.draft_model:
        raise ModelLoadError('speculation is "draft", but no `draft_model` is named; name one or take "ngram"')
    found = store.ensure(settings.draft_model, models_dir, logger.info)
    store.check(found)
    if vocabulary_of(found.path) != vocabulary_of(directory):
        raise ModelLoadError(
            f"the draft model {settings.draft_model!r} has other tokens than the model it is to guess for; take a "
            "smaller model of the same family"
        )
    runner = _runner(found.path, device, settings, kv_cache_bytes=settings.draft_cache_bytes)
    return DraftModel(runner, max_tokens=settings.max_batch_tokens, vocabulary=target.vocabulary)
