"""The settings of the speech service."""

from __future__ import annotations

from typing import Annotated, Literal

from tessera.settings.section import NonNegative, Port, Positive, Section, says


class SpeechSettings(Section, frozen=True, kw_only=True):
    """Speech synthesis and transcription."""

    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, says("TCP port.")] = 8004
    url: Annotated[str, says("Where the gateway reaches it. Empty: http://host:port.")] = ""
    synthesis_model: Annotated[
        str, says("Name of a starter, path of a model directory, or hf:owner/name of a model hub.")
    ] = "english-voices"
    transcription_model: Annotated[
        str, says("Name of a starter, path of a model directory, or hf:owner/name of a model hub.")
    ] = "english-transcription"
    device: Annotated[Literal["auto", "cpu", "cuda"], says("`auto` takes CUDA when there is any.")] = "auto"
    threads: Annotated[NonNegative, says("CPU threads of the engine. 0: all cores of the machine.")] = 0
    max_input_characters: Annotated[Positive, says("Longest text to speak.")] = 4096
    max_speech_seconds: Annotated[
        Positive, says("Longest audio that a codec language model (CSM) makes of one text; there it ends.")
    ] = 300
    max_streams: Annotated[Positive, says("Texts that a codec language model speaks at once; more wait.")] = 16
    kv_cache_bytes: Annotated[
        Positive, says("Most memory for the keys and values of a codec language model's texts.")
    ] = 512 * 1024 * 1024
    max_audio_bytes: Annotated[Positive, says("Largest audio file to transcribe.")] = 25 * 1024 * 1024
    max_audio_seconds: Annotated[Positive, says("Longest audio to transcribe in one request.")] = 1800
    job_workers: Annotated[
        NonNegative, says("Processes that `tessera up` starts for recordings sent with `background=true`.")
    ] = 1
    concurrent_jobs: Annotated[Positive, says("Recordings that such a worker has in work at once.")] = 2
    job_piece_seconds: Annotated[
        Positive, says("Seconds of a recording between two checkpoints, from which a killed job goes on.")
    ] = 120
    max_job_bytes: Annotated[Positive, says("Largest file of such a job.")] = 1024 * 1024 * 1024
    max_job_seconds: Annotated[Positive, says("Longest audio of such a job.")] = 6 * 3600
    max_waiting: Annotated[Positive, says("Requests that may queue; more are answered 429 with Retry-After.")] = 64
    voice_detection: Annotated[
        bool, says("Find speech first (silero) and hear nothing else. `chunking_strategy` decides for one request.")
    ] = True
    max_windows: Annotated[Positive, says("Windows of recordings that are transcribed together.")] = 16
    max_live_sessions: Annotated[Positive, says("Live sessions (WebSockets) at once.")] = 32
    conversation_url: Annotated[
        str, says("Server whose chat completions answer in live conversations, without `/v1`. Empty: the text service.")
    ] = ""
    conversation_key: Annotated[str, says("Sent to it as a bearer token when not empty.")] = ""
