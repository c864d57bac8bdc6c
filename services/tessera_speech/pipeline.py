"""Both directions of speech, made once the engine has loaded: see `synthesis` and `transcription`."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import Histogram

from tessera.engine.client import EngineClient
from tessera.settings.speech import SpeechSettings
from tessera.wire.engine import Ready
from tessera_speech.synthesis.text_to_audio import SynthesisPipeline
from tessera_speech.transcription.audio_to_text import TranscriptionPipeline


class SpeechTools:
    """Text to audio files, and recordings to text."""

    def __init__(self, ready: Ready, engine: EngineClient, settings: SpeechSettings, first_audio: Histogram) -> None:
        spoken, heard = ready.cards
        speech_directory, transcription_directory = map(Path, ready.directories)
        self.synthesis = SynthesisPipeline(spoken, speech_directory, engine, settings, first_audio)
        self.transcription = TranscriptionPipeline(heard, transcription_directory, engine, settings)
