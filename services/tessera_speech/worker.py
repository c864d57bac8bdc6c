"""The process of the speech engine: loads both models and serves the socket that its HTTP process passes to it.

Knows nothing about HTTP or text.
"""

from __future__ import annotations

import logging
import time
from itertools import pairwise

from tessera.engine.process import Engine, run
from tessera.errors import SettingsError
from tessera.hub import store
from tessera.settings import load as configuration
from tessera.settings.tree import Settings
from tessera.telemetry import configure_logging
from tessera.wire.engine import MAX_MESSAGE_BYTES, Ready
from tessera_speech.recordings.voice_activity import RATE, model_file
from tessera_speech.text.planners import load_planner, model_type_of
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer

logger = logging.getLogger(__name__)

BYTES_PER_SAMPLE = 4
FRAME_BYTES = 1 << 20
"""Bytes of a message beside its samples."""


def build(settings: Settings) -> Engine:
    """Load the models that `[speech]` names; a starter that is missing is built first.

    Raises:
        StartError: a model cannot be loaded, or there is no such device.
        SettingsError: recordings may be longer than fits one message, or speech cannot be found at the model's rate.
    """
    marks = [time.perf_counter()]
    # Imported here, so that the report of the start says how long imports take.
    import transformers  # noqa: PLC0415

    from tessera.device import hardware as devices  # noqa: PLC0415
    from tessera.speech.codec import csm as speech_csm  # noqa: PLC0415
    from tessera.speech.codec.queue import CodecSpeechQueue  # noqa: PLC0415
    from tessera.speech.engine import SpeechEngine  # noqa: PLC0415
    from tessera.speech.synthesis import fastspeech as speech_fastspeech  # noqa: PLC0415
    from tessera.speech.synthesis.vits import Synthesizer, load_synthesizer  # noqa: PLC0415
    from tessera.speech.transcription.loading import load_transcriber  # noqa: PLC0415

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    speech = settings.speech
    device = devices.choose(speech.device, dtype="float32", threads=speech.threads)
    marks.append(time.perf_counter())
    synthesis = store.ensure(speech.synthesis_model, settings.models_dir, logger.info)
    transcription = store.ensure(speech.transcription_model, settings.models_dir, logger.info)
    for found in (synthesis, transcription):
        store.check(found)
    # The HTTP process reads these files; a damaged one is found here, at the start.
    load_planner(synthesis.path)
    TranscriptTokenizer(transcription.path)
    marks.append(time.perf_counter())
    synthesizer: Synthesizer | CodecSpeechQueue
    kind = model_type_of(synthesis.path)
    if kind == speech_csm.KIND:
        codec_model = speech_csm.load_codec_language_model(
            synthesis.path,
            synthesis.card,
            device=device.place,
            kv_cache_bytes=speech.kv_cache_bytes,
            max_streams=speech.max_streams,
        )
        synthesis_card = codec_model.card
        synthesizer = CodecSpeechQueue(
            codec_model, max_waiting=speech.max_waiting, max_seconds=speech.max_speech_seconds
        )
    else:
        load = speech_fastspeech.load_fastspeech if kind == speech_fastspeech.KIND else load_synthesizer
        synthesizer = load(synthesis.path, synthesis.card, device=device.place)
        synthesis_card = synthesizer.card
    transcriber = load_transcriber(transcription.path, transcription.card, device=device.place)
    marks.append(time.perf_counter())
    longest = BYTES_PER_SAMPLE * transcriber.sample_rate * speech.max_audio_seconds
    if longest > MAX_MESSAGE_BYTES - FRAME_BYTES:
        fits = (MAX_MESSAGE_BYTES - FRAME_BYTES) // (BYTES_PER_SAMPLE * transcriber.sample_rate)
        raise SettingsError(f"`speech.max_audio_seconds` is {speech.max_audio_seconds}; at most {fits} fit one message")
    if speech.voice_detection:
        model_file()
        if transcriber.sample_rate != RATE:
            raise SettingsError(
                f"`speech.voice_detection` works at {RATE} samples a second; {transcription.card.id} takes "
                f"{transcriber.sample_rate}: set it to false"
            )
    parts = ("imports", "check", "weights")
    ready = Ready(
        device=device.name,
        cards=[synthesis_card, transcriber.card],
        directories=[str(synthesis.path), str(transcription.path)],
        report={part: after - before for part, (before, after) in zip(parts, pairwise(marks), strict=True)},
    )
    return SpeechEngine(
        synthesizer, transcriber, max_waiting=speech.max_waiting, max_windows=speech.max_windows, ready=ready
    )


def main() -> None:
    """Run until the HTTP process closes the connection."""
    settings = configuration.load()
    configure_logging("speech-engine", level=settings.suite.log_level, form=settings.suite.log_format)
    run(lambda: build(settings))


if __name__ == "__main__":
    main()
