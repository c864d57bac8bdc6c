"""The settings of the video service."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tessera.settings.section import (
    DEVICE,
    HOST,
    PORT,
    THREADS,
    URL,
    NonNegative,
    NonNegativeFloat,
    Port,
    Positive,
    PositiveFloat,
    Section,
    described,
)


class VideoSettings(Section, frozen=True, kw_only=True):
    """The video service, which takes jobs, and its workers, which run them."""

    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[Port, PORT] = 8003
    url: Annotated[str, URL] = ""
    model: Annotated[
        str,
        described(
            "Model to serve: the name of a starter, the path of a Diffusers pipeline directory, or `hf:owner/name` of "
            "a hub."
        ),
    ] = "shapes-video"
    device: Annotated[Literal["auto", "cpu", "cuda"], DEVICE] = "auto"
    threads: Annotated[NonNegative, THREADS] = 0
    workers: Annotated[Positive, described("Worker processes that `tessera up` starts.")] = 1
    devices: Annotated[
        Positive,
        described(
            "GPUs of one worker, which compute each step together (context parallelism), so that each clip takes less "
            "time. Each GPU has a process of its own. Only for models of the Wan family."
        ),
    ] = 1
    concurrent_jobs: Annotated[
        Positive, described("Most videos that one worker generates together; their steps share batches.")
    ] = 4
    checkpoint_steps: Annotated[
        NonNegative,
        described("Denoising steps between two checkpoints. A killed job resumes from its last checkpoint. 0: none."),
    ] = 5
    memory_bytes: Annotated[
        NonNegative,
        described(
            "Memory, in bytes, that all videos of a worker may take beside the model. 0: nine tenths of what is free "
            "when the model is loaded."
        ),
    ] = 0
    tile_pixels: Annotated[
        NonNegative,
        described(
            "Frames of more pixels than this are decoded in tiles, which takes less memory and more time. Frames that "
            "would not fit in memory otherwise are always decoded in tiles. 0: only those."
        ),
    ] = 0
    preview_steps: Annotated[
        NonNegative,
        described("Denoising steps between two previews, small pictures among the events of a job. 0: none."),
    ] = 5
    steps: Annotated[
        NonNegative,
        described("Denoising steps of a request that names none. 0: as many as the model's card says, else 30."),
    ] = 0
    step_cache: Annotated[
        Literal["off", "first_block", "polynomial", "magnitude"],
        described(
            "How denoising steps reuse what earlier steps computed, for requests that do not choose: faster, with a "
            "slightly different clip. `first_block` needs no preparation; the others need "
            "`python -m tessera_video.calibrate`."
        ),
    ] = "off"
    step_cache_threshold: Annotated[
        NonNegativeFloat,
        described(
            "Largest error that a step cache may cause; larger is faster. 0: the default of the chosen step cache."
        ),
    ] = 0.0
    adapters: Annotated[
        list[str],
        described(
            "Low-rank adapters (LoRA) that requests may name, each as `name=path` of a safetensors file; "
            "`name@2=path` is for the second expert of a model with two."
        ),
    ] = msgspec.field(default_factory=list)
    weights: Annotated[
        Literal["stored", "int8", "fp8", "int4", "mxfp4", "nvfp4"],
        described(
            "Scheme by which the transformer's blocks are multiplied. `stored`: as the files have it. `int8`, `fp8`: "
            "weights and inputs in 8 bits. `int4`, `mxfp4`, `nvfp4`: weights in 4 bits. All but `int8` are made for "
            "GPUs; a CPU computes them slowly."
        ),
    ] = "stored"
    offload: Annotated[
        Literal["auto", "none", "encoders", "blocks"],
        described(
            "Weights that stay in host memory and are copied to the GPU when they are used. `auto`: as few as "
            "necessary, first text encoder and VAE, then blocks of the transformer, each prefetched one block ahead. "
            "`none`: no weights. `encoders`, `blocks`: at least those."
        ),
    ] = "auto"
    weights_bytes: Annotated[
        NonNegative,
        described("Device memory for weights, in bytes. 0: three quarters of what is free, and no limit on a CPU."),
    ] = 0
    attention: Annotated[
        Literal["exact", "int8", "int8_fp8"],
        described(
            "Arithmetic of self attention on a GPU. `exact`: the type of the model. `int8`: scores in 8 bits, an error "
            "of about 1 %. `int8_fp8`: values in 8 bits too, about 4 %."
        ),
    ] = "exact"
    kernels: Annotated[
        Literal["auto", "reference"],
        described(
            "Kernels that compute. `auto`: Triton's on a GPU. `reference`: plain torch everywhere, to compare results "
            "or to work around a fault."
        ),
    ] = "auto"
    max_steps: Annotated[Positive, described("Most denoising steps of one request.")] = 100
    max_seconds: Annotated[Positive, described("Longest clip of one request, in seconds.")] = 20
    max_extended_seconds: Annotated[
        Positive, described("Longest clip that extensions may make, all parts together, in seconds.")
    ] = 120
    max_pixels: Annotated[Positive, described("Most pixels of one frame.")] = 1920 * 1088
    max_image_bytes: Annotated[Positive, described("Largest input reference image, in bytes.")] = 20 * 1024 * 1024
    max_images: Annotated[Positive, described("Most images of one `/v1/images/generations` request.")] = 8
    image_patience_s: Annotated[
        PositiveFloat,
        described(
            "Seconds that a client of `/v1/images/generations` waits who sends no `deadline_s`. Images that are "
            "estimated to take longer are refused with the estimate, before they are made or as soon as their steps "
            "show it; a client who will wait says so by `deadline_s`."
        ),
    ] = 120.0
    max_estimated_s: Annotated[
        NonNegative,
        described(
            "Seconds that a clip may be estimated to take, without its time in the queue, if its request says by no "
            "`deadline_s` how long the client waits; longer ones are refused with the estimate. 0: any."
        ),
    ] = 3600
    image_wait_s: Annotated[
        PositiveFloat,
        described(
            "Most seconds that `/v1/images/generations` waits for its images, whatever `deadline_s` a request sends, "
            "before it answers 504 and gives them up."
        ),
    ] = 300.0
