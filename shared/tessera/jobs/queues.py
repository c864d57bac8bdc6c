"""Names of the job queues: one for each kind of worker and model."""

from __future__ import annotations


def queue_of(model: str) -> str:
    """The queue that the workers of a video model listen to."""
    return f"video.{model}"


def queue_of_transcriptions(model: str) -> str:
    """The queue that the workers of a transcription model listen to."""
    return f"transcription.{model}"
