"""Both directions of speech: `SpeechTools` is made once the engine has loaded its models."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from prometheus_client import Histogram

from tessera.engine.client import EngineClient
from tessera.engine.host import EngineHost
from tessera.settings.speech import SpeechSettings
from tessera.wire.engine import Ready
from tessera_speech.synthesis.text_to_audio import SynthesisPipeline
from tessera_speech.transcription.audio_to_text import TranscriptionPipeline


class SpeechTools:
    """Synthesis and transcription with the models of one engine.

    Args:
        ready: what the engine has loaded.
        engine: the connection to it.
        settings: limits.
        first_audio: observes the seconds from a request to the first bytes of its audio.
    """

    def __init__(self, ready: Ready, engine: EngineClient, settings: SpeechSettings, first_audio: Histogram) -> None:
        synthesis_card, transcription_card = ready.cards
        synthesis_directory, transcription_directory = map(Path, ready.directories)
        self.synthesis = SynthesisPipeline(synthesis_card, synthesis_directory, engine, settings, first_audio)
        self.transcription = TranscriptionPipeline(transcription_card, transcription_directory, engine, settings)


SpeechHost: TypeAlias = EngineHost[SpeechTools]
"""The speech engine's process, as HTTP handlers take it."""
