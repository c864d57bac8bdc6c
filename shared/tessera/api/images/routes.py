"""`POST /v1/images/generations` as OpenAI has it: a job as durable as a video's, whose end the client waits for.

The handler passes the modules of this folder once: `request` makes an order of the body, `submission` accepts it and
waits, `view` shows the images. A client that leaves cancels the job; images that were handed out are deleted. Does not
know who makes the images.
"""

from __future__ import annotations

from litestar import Response, post

from tessera.api.images.request import order_from
from tessera.api.images.submission import submitted
from tessera.api.images.view import images_response
from tessera.api.job_headers import owner_of
from tessera.api.job_resources import JobResources
from tessera.errors import UnsupportedMediaError
from tessera.web.app import json_response
from tessera.web.dependencies import HTTPRequest, Injected
from tessera.web.disconnect import unless_client_leaves
from tessera.web.docs import documented
from tessera.wire.decoding import decode_json
from tessera.wire.images import ImageGenerationRequest, ImagesResponse


@post(
    "/v1/images/generations",
    status_code=200,
    summary="Make images from a text.",
    tags=["images"],
    operation_class=documented(ImageGenerationRequest),
)
async def generate_images(request: HTTPRequest, jobs: Injected[JobResources]) -> Response[ImagesResponse]:
    """Waits for the images: single frames of the video model. A client that leaves stops the work at its next step."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaError(f"content-type {kind or '(none)'!r} is not supported here; send application/json")
    order = await order_from(decode_json(await request.body(), ImageGenerationRequest), jobs)
    async with submitted(jobs, owner_of(request), order) as images:
        finished = await unless_client_leaves(request, images.finished())
    return json_response(images_response(finished))
