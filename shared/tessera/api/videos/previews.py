"""Previews of videos that are being made, as the event stream shows them. Torch-free; does not know how one is made."""

from __future__ import annotations

import base64

from tessera.jobs.records import JobEvent
from tessera.wire.videos import VideoPreview


def preview_of(happened: JobEvent, video_id: str) -> VideoPreview:
    """The event `preview` of a job as the wire has it."""
    encoded = base64.b64encode(happened.picture).decode()
    return VideoPreview(id=video_id, progress=happened.progress, image_url=f"data:image/jpeg;base64,{encoded}")
