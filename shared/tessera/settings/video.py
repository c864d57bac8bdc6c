"""The settings of the video service."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tessera.settings.section import NonNegative, NonNegativeFloat, Port, Positive, PositiveFloat, Section, says


class VideoSettings(Section, frozen=True, kw_only=True):
    """Video diffusion: a service that takes jobs and workers that do them."""

    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, says("TCP port.")] = 8003
    url: Annotated[str, says("Where the gateway reaches it. Empty: http://host:port.")] = ""
    model: Annotated[str, says("Name of a starter, path of a Diffusers pipeline directory, or hf:owner/name.")] = (
        "shapes-video"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], says("`auto` takes CUDA when there is any.")] = "auto"
    threads: Annotated[NonNegative, says("CPU threads of a worker. 0: all cores of the machine.")] = 0
    workers: Annotated[Positive, says("Worker processes that `tessera up` starts.")] = 1
    devices: Annotated[
        Positive,
        says(
            "GPUs of a worker, which compute each step together (context parallelism): clips come sooner. One process "
            "each; for models of the Wan family."
        ),
    ] = 1
    concurrent_jobs: Annotated[Positive, says("Videos that a worker makes at once, their steps in shared batches.")] = 4
    checkpoint_steps: Annotated[
        NonNegative, says("Steps between two checkpoints, from which a killed job goes on. 0: none.")
    ] = 5
    memory_bytes: Annotated[
        NonNegative,
        says("Memory that all videos of a worker may take beside the model. 0: nine tenths of what is free then."),
    ] = 0
    tile_pixels: Annotated[
        NonNegative,
        says(
            "Frames of more pixels are decoded in tiles, which takes less memory and more time; those that would not "
            "fit the memory otherwise always are. 0: only those."
        ),
    ] = 0
    preview_steps: Annotated[
        NonNegative, says("Steps between two previews, small pictures among a job's events. 0: none.")
    ] = 5
    steps: Annotated[
        NonNegative, says("Denoising steps when a request names none. 0: as many as the model's card says, or 30.")
    ] = 0
    step_cache: Annotated[
        Literal["off", "first_block", "polynomial", "magnitude"],
        says(
            "How denoising steps take what earlier ones have computed, when a request does not say: faster, and not "
            "quite the same clip. `first_block` needs nothing; the others need `python -m tessera_video.calibrate`."
        ),
    ] = "off"
    step_cache_threshold: Annotated[
        NonNegativeFloat, says("Error that a step cache may bring; larger is faster. 0: as the way of caching has it.")
    ] = 0.0
    adapters: Annotated[
        list[str],
        says(
            "Low-rank adapters (LoRA) that requests can ask for by name, as `name=path` of a safetensors file; "
            "`name@2=path` for the second expert of a model with two."
        ),
    ] = msgspec.field(default_factory=list)
    weights: Annotated[
        Literal["stored", "int8", "fp8", "int4", "mxfp4", "nvfp4"],
        says(
            "How the transformer's blocks are multiplied. `stored`: as they are. `int8`, `fp8`: weights and inputs in "
            "8 bits. `int4`, `mxfp4`, `nvfp4`: weights in 4 bits. All but `int8` are for GPUs: a CPU computes them "
            "slowly."
        ),
    ] = "stored"
    offload: Annotated[
        Literal["auto", "none", "encoders", "blocks"],
        says(
            "Weights that wait in the host's memory and come to the GPU when they are used. `auto`: as little as must: "
            "first text encoder and VAE, then blocks of the transformer, one ahead of its turn. `none`: nothing. "
            "`encoders`, `blocks`: no less than those."
        ),
    ] = "auto"
    weights_bytes: Annotated[
        NonNegative, says("Memory of the device for weights. 0: three quarters of what is free; on a CPU no limit.")
    ] = 0
    attention: Annotated[
        Literal["exact", "int8", "int8_fp8"],
        says(
            "What self attention is made of on a GPU. `int8`: scores of 8 bits, an error of about 1 %. `int8_fp8`: "
            "values too, about 4 %."
        ),
    ] = "exact"
    kernels: Annotated[
        Literal["auto", "reference"],
        says("`auto`: Triton's on a GPU. `reference`: plain torch everywhere, to compare or to go round a fault."),
    ] = "auto"
    max_steps: Annotated[Positive, says("Most denoising steps.")] = 100
    max_seconds: Annotated[Positive, says("Longest clip.")] = 20
    max_extended_seconds: Annotated[Positive, says("Longest clip that extensions may make, all parts together.")] = 120
    max_pixels: Annotated[Positive, says("Most pixels of a frame.")] = 1920 * 1088
    max_image_bytes: Annotated[Positive, says("Largest input reference image.")] = 20 * 1024 * 1024
    max_images: Annotated[Positive, says("Most images of one `/v1/images/generations`.")] = 8
    image_wait_s: Annotated[
        PositiveFloat, says("Seconds that `/v1/images/generations` waits; then the images are given up with a 504.")
    ] = 300.0
