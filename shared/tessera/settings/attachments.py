"""The settings of recordings and files in messages, which the text and the vision service read."""

from __future__ import annotations

from typing import Annotated

from tessera.settings.section import Positive, PositiveFloat, Section, described


class AttachmentSettings(Section, frozen=True, kw_only=True):
    """Recordings and files in the messages of text and vision models: the model reads their text."""

    max_recordings: Annotated[
        Positive, described("Most recordings (`input_audio`) of one request. The speech service transcribes them.")
    ] = 8
    max_recording_bytes: Annotated[
        Positive, described("Largest recording, in bytes. Seconds are limited by `speech.max_audio_seconds`.")
    ] = 10 * 1024 * 1024
    recording_timeout_s: Annotated[
        PositiveFloat, described("Seconds in which the speech service must have transcribed one recording.")
    ] = 120.0
    max_files: Annotated[Positive, described("Most files (`file`) of one request.")] = 8
    max_file_bytes: Annotated[Positive, described("Largest file, in bytes.")] = 10 * 1024 * 1024
    max_file_characters: Annotated[Positive, described("Most characters of the text of one file.")] = 1_000_000
    max_pages: Annotated[Positive, described("Most pages of a PDF file.")] = 200
    file_timeout_s: Annotated[
        PositiveFloat,
        described("Seconds in which the text of a PDF file must have been found, in a process of its own."),
    ] = 20.0
    cached_characters: Annotated[
        Positive,
        described(
            "Characters of transcripts and texts of PDF files that a service keeps in memory, because a conversation "
            "sends its attachments again with every turn."
        ),
    ] = 4_000_000
