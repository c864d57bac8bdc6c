"""Checks a request against what a model can do, before anything is encoded. Does not check sizes and limits."""

from __future__ import annotations

from tessera.diffusion.request import DiffusionRequest
from tessera.errors import InvalidRequestError
from tessera.models.lora import Adapters


def check_request(
    request: DiffusionRequest, *, image_input: str, experts: int, adapters: Adapters, calibrated: bool, shared_by: int
) -> None:
    """Refuse a request with inputs that the model would have to ignore.

    Args:
        request: the request to check.
        image_input: whether the model takes a first frame: `none`, `optional` or `required`.
        experts: number of transformers among which the steps are divided.
        adapters: the adapters that the model has.
        calibrated: whether the model was measured for step caches.
        shared_by: number of devices that compute each pass together.

    Raises:
        InvalidRequestError: an image is missing, or given to a model that takes none; a second guidance scale would
            have no effect; the model has no such adapter; the step cache needs a measurement that is missing.
    """
    if image_input == "required" and request.image is None:
        raise InvalidRequestError("this model starts from an image, and none is given", param="input_reference")
    if image_input == "none" and request.image is not None:
        raise InvalidRequestError("this model takes no image", param="input_reference")
    cache = request.step_cache
    if cache is not None and cache.kind != "first_block" and not calibrated:
        raise InvalidRequestError(
            f"`step_cache` is {cache.kind!r}, for which this model was not measured yet: ask for 'first_block', or "
            f"run `python -m tessera_video.calibrate` and start the worker again",
            param="step_cache",
        )
    if cache is not None and shared_by > 1:
        raise InvalidRequestError(
            f"this model's steps are computed by {shared_by} devices together, for which there are no step caches: "
            f"leave `step_cache` out",
            param="step_cache",
        )
    if unknown := adapters.unknown(request.adapters):
        raise InvalidRequestError(
            f"this model has no adapter {unknown[0]!r}; it has: {', '.join(adapters.names) or 'none'}",
            param="adapters",
        )
    second = request.guidance_scale_2
    if second is not None and experts < 2:
        raise InvalidRequestError(
            "`guidance_scale_2` is for models with two experts, and this one has one: leave it out",
            param="guidance_scale_2",
        )
    if second is not None and second > 1.0 >= request.guidance_scale:
        raise InvalidRequestError(
            f"`guidance_scale_2` is {second:g} where `guidance_scale` is {request.guidance_scale:g}, with which a clip "
            f"is not guided at all: set `guidance_scale` above 1, or `guidance_scale_2` to 1",
            param="guidance_scale_2",
        )
