"""The settings of the speech service."""

from __future__ import annotations

from typing import Annotated, Literal

from tessera.settings.section import (
    DEVICE,
    HOST,
    PORT,
    THREADS,
    URL,
    NonNegative,
    Port,
    Positive,
    Section,
    described,
)


class SpeechSettings(Section, frozen=True, kw_only=True):
    """The speech service: synthesis and transcription."""

    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[Port, PORT] = 8004
    url: Annotated[str, URL] = ""
    synthesis_model: Annotated[
        str,
        described(
            "Model that speaks: the name of a starter, the path of a model directory, or `hf:owner/name` of a hub."
        ),
    ] = "english-voices"
    transcription_model: Annotated[
        str,
        described(
            "Model that transcribes: the name of a starter, the path of a model directory, or `hf:owner/name` of a hub."
        ),
    ] = "english-transcription"
    device: Annotated[Literal["auto", "cpu", "cuda"], DEVICE] = "auto"
    threads: Annotated[NonNegative, THREADS] = 0
    max_input_characters: Annotated[Positive, described("Longest text of one synthesis request, in characters.")] = 4096
    max_speech_seconds: Annotated[
        Positive,
        described("Longest audio of one text by a codec language model (CSM), in seconds; longer audio ends there."),
    ] = 300
    max_streams: Annotated[
        Positive, described("Most texts that a codec language model speaks at the same time. Further ones wait.")
    ] = 16
    kv_cache_bytes: Annotated[
        Positive, described("Memory for the keys and values of a codec language model, in bytes.")
    ] = 512 * 1024 * 1024
    max_audio_bytes: Annotated[Positive, described("Largest audio file that one request may transcribe, in bytes.")] = (
        25 * 1024 * 1024
    )
    max_audio_seconds: Annotated[Positive, described("Longest audio that one request may transcribe, in seconds.")] = (
        1800
    )
    job_workers: Annotated[
        NonNegative,
        described("Worker processes that `tessera up` starts for recordings sent with `background=true`. 0: none."),
    ] = 1
    concurrent_jobs: Annotated[Positive, described("Most recordings that one such worker transcribes together.")] = 2
    job_piece_seconds: Annotated[
        Positive,
        described("Seconds of a recording between two checkpoints. A killed job resumes from its last checkpoint."),
    ] = 120
    max_job_bytes: Annotated[Positive, described("Largest file of such a job, in bytes.")] = 1024 * 1024 * 1024
    max_job_seconds: Annotated[Positive, described("Longest audio of such a job, in seconds.")] = 6 * 3600
    max_waiting: Annotated[
        Positive, described("Most requests in the queue. Further ones are answered 429 with Retry-After.")
    ] = 64
    voice_detection: Annotated[
        bool,
        described(
            "Whether voice activity detection (silero) runs first, so that only speech is transcribed. "
            "`chunking_strategy` overrides it for one request."
        ),
    ] = True
    max_windows: Annotated[
        Positive, described("Most windows, of one or several recordings, that one batch transcribes.")
    ] = 16
    max_live_sessions: Annotated[Positive, described("Most live sessions (WebSockets) at the same time.")] = 32
    conversation_url: Annotated[
        str,
        described(
            "Address, without `/v1`, of the server whose chat completions answer in live conversations. Empty: the "
            "text service."
        ),
    ] = ""
    conversation_key: Annotated[
        str, described("Key that is sent to that server as a bearer token. Empty: none is sent.")
    ] = ""
