"""An artifact as an HTTP response: whole, the part that a `Range` header names, or no body at all (RFC 9110).

Does not know jobs: whether the client may see the file was decided before.
"""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import HttpMethod, Response
from litestar.response import Stream

from tessera.errors import RangeNotSatisfiableError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.web.dependencies import HTTPRequest
from tessera.web.errors import envelope
from tessera.web.ranges import ByteRange, chunks, parse_range
from tessera.wire.jobs import Artifact


async def artifact_response(
    request: HTTPRequest, artifacts: ArtifactStore, artifact: Artifact, *, filename: str
) -> Response[Any]:
    """200 with the file, 206 with a part of it, 304 if the client has it already, or 416.

    Args:
        request: its method, `Range`, `If-Range` and `If-None-Match` decide what is sent.
        artifacts: the store that has the file.
        artifact: the file's record.
        filename: name under which a browser saves the file.

    Raises:
        NotFoundError: the file is not in the store any more.
        UnavailableError: the store does not answer.
    """
    etag = f'"{artifact.sha256}"'
    headers = {
        "accept-ranges": "bytes",
        "etag": etag,
        "content-type": artifact.content_type,
        "content-disposition": f'inline; filename="{filename}"',
    }
    if request.headers.get("if-none-match") == etag:
        return Response(b"", status_code=304, headers=headers)
    unchanged = request.headers.get("if-range", etag) == etag
    try:
        part = parse_range(request.headers.get("range") if unchanged else None, artifact.bytes)
    except ValueError:
        problem = RangeNotSatisfiableError(f"the file has {artifact.bytes} bytes", param="Range")
        headers = {"content-range": f"bytes */{artifact.bytes}"}
        return Response(envelope(problem), status_code=416, headers=headers, media_type="application/json")
    whole = part or ByteRange(0, artifact.bytes)
    headers["content-length"] = str(whole.length)
    if part is not None:
        headers["content-range"] = f"bytes {part.start}-{part.start + part.length - 1}/{artifact.bytes}"
    status = 200 if part is None else 206
    if request.method == HttpMethod.HEAD:
        return Response(b"", status_code=status, headers=headers)
    file = await asyncio.to_thread(artifacts.open, artifact.key)
    return Stream(chunks(file, whole), status_code=status, headers=headers, media_type=artifact.content_type)
