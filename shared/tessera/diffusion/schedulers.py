"""Schedulers: whichever one a pipeline's directory names, checked when it is loaded, and copied for each request.

A scheduler that draws noise at each step (schedulers of distilled models do) draws it from the request's generator, so
that a seed determines the clip. Knows no architecture.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from tessera.diffusion.request import DiffusionRequest, DiffusionState
from tessera.errors import InvalidRequestError, ModelLoadError

FLOW_CLASSES = frozenset(
    {
        "FlowMatchEulerDiscreteScheduler",
        "FlowMatchHeunDiscreteScheduler",
        "FlowMatchLCMScheduler",
        "FlowMapEulerDiscreteScheduler",
        "LTXEulerAncestralRFScheduler",
    }
)
"""Scheduler classes for flow predictions alone; others say it in their `prediction_type`."""
TRIAL_REQUEST = DiffusionRequest(
    id="trial",
    prompt="",
    negative_prompt="",
    width=256,
    height=256,
    frames=9,
    steps=3,
    guidance_scale=1.0,
    seed=0,
)
"""The request whose steps `check_scheduler` makes."""


def unstepped_copy(scheduler: Any) -> Any:
    """Return a scheduler of the same class and configuration that has not stepped yet."""
    return type(scheduler).from_config(scheduler.config)


def start_scheduler(
    scheduler: Any, request: DiffusionRequest, set_timesteps: Callable[[Any, DiffusionRequest], None]
) -> Any:
    """Return a scheduler for one request, before its first step.

    Raises:
        InvalidRequestError: the scheduler cannot make that number of steps.
    """
    made = unstepped_copy(scheduler)
    name = type(scheduler).__name__
    try:
        set_timesteps(made, request)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidRequestError(
            f"`steps` is {request.steps}, which this model's {name} cannot make: {error}", param="steps"
        ) from error
    if not len(made.timesteps) or not bool(made.timesteps.isfinite().all()):
        raise InvalidRequestError(
            f"`steps` is {request.steps}, for which this model's {name} has no timesteps: ask for more", param="steps"
        )
    if hasattr(made, "set_begin_index"):
        made.set_begin_index(0)
    return made


def is_flow(scheduler: Any) -> bool:
    """Return whether the scheduler expects a model that predicts a flow (Lipman et al. 2022), not noise."""
    return type(scheduler).__name__ in FLOW_CLASSES or scheduler.config.get("prediction_type") == "flow_prediction"


def advance_scheduler(
    state: DiffusionState, predicted: torch.Tensor, latents: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Step a request's scheduler.

    Args:
        state: gives the scheduler, the timestep and the random generator. It is not changed.
        predicted: the model's prediction, in the layout that the scheduler is used with.
        latents: the latents before the step, of the same shape.

    Returns:
        The latents after the step, then whatever else the scheduler returns: some add the predicted clean latents.
    """
    scheduler = state.scheduler
    optional = {"generator": state.generator} if "generator" in inspect.signature(scheduler.step).parameters else {}
    answer: tuple[torch.Tensor, ...] = scheduler.step(
        predicted, state.timesteps[state.index], latents, return_dict=False, **optional
    )
    return answer


def predicted_clean(state: DiffusionState, predicted: torch.Tensor, latents: torch.Tensor) -> torch.Tensor | None:
    """Return the clean latents that a flow predicts, x - sigma * v (Lipman et al. 2022); None if it is no flow."""
    if not is_flow(state.scheduler):
        return None
    return latents - float(state.scheduler.sigmas[state.index]) * predicted


def check_scheduler(
    scheduler: Any,
    *,
    flow: bool,
    begin: Callable[[Any, DiffusionRequest], None],
    advance: Callable[[DiffusionState, torch.Tensor], None],
) -> None:
    """Step a scheduler a few times with zeros when a model is loaded, so that no request finds out that it fails.

    Args:
        scheduler: the pipeline's scheduler. It is not changed.
        flow: whether the model predicts a flow.
        begin: sets the timesteps as the family does.
        advance: steps as the family does.

    Raises:
        ModelLoadError: the scheduler is for other models, or fails when it is stepped; names its class and the remedy.
    """
    name = type(scheduler).__name__
    if is_flow(scheduler) != flow:
        wanted, found = ("a flow", "noise") if flow else ("noise or velocities", "a flow")
        raise ModelLoadError(
            f"the pipeline's scheduler is a {name} for models that predict {found}, and this one predicts {wanted}: "
            f"put one that fits into scheduler/scheduler_config.json and model_index.json"
        )
    trial = unstepped_copy(scheduler)
    try:
        begin(trial, TRIAL_REQUEST)
        zeros = torch.zeros(1, 1, 1, 2, 2, device=trial.timesteps.device)
        state = DiffusionState(
            request=TRIAL_REQUEST,
            generator=torch.Generator("cpu").manual_seed(0),
            timesteps=trial.timesteps,
            prompt=(),
            negative=None,
            latents_BCTHW=zeros,
            scheduler=trial,
        )
        while not state.done:
            advance(state, zeros)
            state.index += 1
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError, NotImplementedError) as error:
        raise ModelLoadError(
            f"the pipeline's scheduler {name} cannot be stepped as this model is: {error}; put another one into "
            f"scheduler/scheduler_config.json and model_index.json"
        ) from error
    if state.latents_BCTHW.shape != zeros.shape or not bool(state.latents_BCTHW.isfinite().all()):
        raise ModelLoadError(
            f"the pipeline's scheduler {name} makes no finite latents of the model's shape; put another one into "
            f"scheduler/scheduler_config.json and model_index.json"
        )
