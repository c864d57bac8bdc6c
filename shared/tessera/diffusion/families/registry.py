"""Which family steps which pipeline class. A family is imported when a pipeline is of it.

Does not know how a pipeline is loaded.
"""

from __future__ import annotations

import importlib

from tessera.diffusion.families.base import FamilyModel

FAMILIES = {
    "WanPipeline": "tessera.diffusion.families.wan.model:WanModel",
    "WanImageToVideoPipeline": "tessera.diffusion.families.wan.model:WanModel",
    "LTXPipeline": "tessera.diffusion.families.ltx.model:LTXModel",
    "LTXImageToVideoPipeline": "tessera.diffusion.families.ltx.model:LTXModel",
    "CogVideoXPipeline": "tessera.diffusion.families.cogvideox.model:CogVideoXModel",
    "CogVideoXImageToVideoPipeline": "tessera.diffusion.families.cogvideox.model:CogVideoXModel",
    "HunyuanVideo15Pipeline": "tessera.diffusion.families.hunyuan.model:HunyuanVideo15Model",
    "HunyuanVideo15ImageToVideoPipeline": "tessera.diffusion.families.hunyuan.model:HunyuanVideo15Model",
}
"""The class of a family's model by the pipeline class that `model_index.json` names."""


def family_of(pipeline_class: str) -> type[FamilyModel] | None:
    """The model class that steps a pipeline class; None: it has no step loop of ours."""
    place = FAMILIES.get(pipeline_class)
    if place is None:
        return None
    module, name = place.split(":")
    found: type[FamilyModel] = getattr(importlib.import_module(module), name)
    return found
