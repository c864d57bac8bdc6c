"""Which family steps which pipeline class. A family is imported when a pipeline is of it.

Does not know how a pipeline is loaded.
"""

from __future__ import annotations

import importlib

from tessera.engine.diffusion_family import FamilyModel

FAMILIES = {
    "WanPipeline": "tessera.engine.diffusion_wan:WanModel",
    "WanImageToVideoPipeline": "tessera.engine.diffusion_wan:WanModel",
    "LTXPipeline": "tessera.engine.diffusion_ltx:LTXModel",
    "LTXImageToVideoPipeline": "tessera.engine.diffusion_ltx:LTXModel",
    "CogVideoXPipeline": "tessera.engine.diffusion_cogvideox:CogVideoXModel",
    "CogVideoXImageToVideoPipeline": "tessera.engine.diffusion_cogvideox:CogVideoXModel",
    "HunyuanVideo15Pipeline": "tessera.engine.diffusion_hunyuan:HunyuanVideo15Model",
    "HunyuanVideo15ImageToVideoPipeline": "tessera.engine.diffusion_hunyuan:HunyuanVideo15Model",
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
