"""Start of an encoder engine: find, check and load every encoder of the settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import transformers

from tessera.device.hardware import choose
from tessera.encoders.encoder import Encoder
from tessera.encoders.engine import EncoderEngine
from tessera.encoders.loading import load_encoder
from tessera.errors import SettingsError
from tessera.hub import store
from tessera.settings.encoders import EncoderEngineSettings, EncoderSettings
from tessera.wire.engine import EncoderText, Ready

DUMMY_NOTICE = "random weights of the model's shapes, for measuring speed: its vectors mean nothing"

logger = logging.getLogger(__name__)


def start_encoder_engine(
    encoders: Sequence[EncoderSettings], settings: EncoderEngineSettings, models_dir: Path, process_started: float
) -> EncoderEngine:
    """Load the encoders of the settings.

    Args:
        encoders: settings of each.
        settings: device, budgets and limits of all.
        models_dir: directory of the models that have names.
        process_started: `time.perf_counter()` at the start of the process, for the report.

    Raises:
        ModelLoadError: a model cannot be found, verified or loaded.
        SettingsError: two encoders have the same name.
    """
    transformers.logging.set_verbosity_error()
    imported = time.perf_counter()
    device = choose(settings.device, dtype=settings.dtype, threads=settings.threads)
    loaded: list[Encoder] = []
    for encoder in encoders:
        found = store.ensure(encoder.source, models_dir, logger.info)
        card, dummy = found.card, settings.load == "dummy"
        if dummy:
            card = msgspec.structs.replace(card, notice=DUMMY_NOTICE, quality=[])
        else:
            store.check(found)
        loaded.append(load_encoder(found.path, card, encoder, device=device.place, dtype=device.dtype, dummy=dummy))
        if loaded[-1].card.id in {other.card.id for other in loaded[:-1]}:
            raise SettingsError(
                f"two encoders are called {loaded[-1].card.id!r}; give one a `name` in its [[text.encoders]]"
            )
    weights = time.perf_counter()
    for one in loaded:
        one.run([EncoderText([0])])
    ready = Ready(
        device=device.name,
        cards=[one.card for one in loaded],
        directories=[str(one.directory) for one in loaded],
        report={
            "imports_s": imported - process_started,
            "weights_s": weights - imported,
            "warm_up_s": time.perf_counter() - weights,
        },
    )
    return EncoderEngine(loaded, settings, ready)
