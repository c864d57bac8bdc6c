"""Maps pipeline classes to families. A family's module is imported only when a pipeline needs it.

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
"""Module and class of the family's model, by the pipeline class that `model_index.json` names."""


def family_of(pipeline_class: str) -> type[FamilyModel] | None:
    """Return the model class for a pipeline class; None when there is no step loop of ours."""
    place = FAMILIES.get(pipeline_class)
    if place is None:
        return None
    module, name = place.split(":")
    found: type[FamilyModel] = getattr(importlib.import_module(module), name)
    return found
