"""The metadata of a result file: enough to make it again. Knows no containers."""

from __future__ import annotations

import json

from tessera.wire.jobs import ImageInput, VideoInput


def provenance_comment(given: VideoInput | ImageInput, *, seed: int) -> str:
    """Return the request as JSON in ASCII, which every container stores unchanged.

    Args:
        given: the job's input.
        seed: seed of this file; the images of one job have different ones.
    """
    made = {
        "software": "tessera",
        "model": given.model,
        "prompt": given.prompt,
        **({"negative_prompt": given.negative_prompt} if given.negative_prompt else {}),
        "seed": seed,
        "steps": given.steps,
        "guidance_scale": given.guidance_scale,
    }
    if isinstance(given, VideoInput) and given.guidance_scale_2 is not None:
        made["guidance_scale_2"] = given.guidance_scale_2
    if isinstance(given, VideoInput) and given.adapters:
        made["adapters"] = given.adapters
    if isinstance(given, VideoInput) and given.step_cache != "off":
        made |= {"step_cache": given.step_cache, "step_cache_threshold": given.step_cache_threshold}
    if isinstance(given, VideoInput) and given.extends is not None:
        made |= {"extends": given.extends, "frames_before": given.before}
    return json.dumps(made)
