"""Segments as SubRip (srt) and WebVTT (vtt) files.

Sources: the de-facto SubRip format; W3C, WebVTT: The Web Video Text Tracks Format.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.wire.audio import Segment


def srt(segments: Sequence[Segment]) -> str:
    """Numbered cues with a comma as decimal mark. Empty segments have no cue."""
    cues = [
        f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_text(segment).replace('-->', '->')}\n"
        for number, segment in enumerate(_with_text(segments), start=1)
    ]
    return "\n".join(cues)


def vtt(segments: Sequence[Segment]) -> str:
    """A WebVTT file; `&`, `<` and `>` are escaped, as its text is markup."""
    cues = [
        f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_escape(_text(segment))}\n"
        for segment in _with_text(segments)
    ]
    return "\n".join(["WEBVTT\n", *cues])


def _with_text(segments: Sequence[Segment]) -> list[Segment]:
    return [segment for segment in segments if _text(segment)]


def _text(segment: Segment) -> str:
    """One line: an empty line would end the cue."""
    return " ".join(segment.text.split())


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(seconds: float, decimal_mark: str) -> str:
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{decimal_mark}{rest % 1000:03}"
