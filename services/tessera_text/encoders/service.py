"""The encoders of the text service: their engine, if any are configured, and which one answers a request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.engine.host import EngineHost
from tessera.errors import InvalidRequestError, ModelNotFoundError, NotFoundError, UnavailableError
from tessera.settings.text import TextSettings
from tessera.wire.models import Model, ModelList, Task
from tessera_text.encoders.tools import EncoderTools, EncodingMetrics, build_encoder_tools

UNCONFIGURED = "this service has no encoders; name one in [[text.encoders]] of tessera.toml"


class Encoders:
    """All encoders of a text service.

    Args:
        settings: of the service.
        registry: where metrics are registered.
    """

    def __init__(self, settings: TextSettings, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._host: EngineHost[dict[str, EncoderTools]] | None = None
        if settings.encoders:
            metrics = EncodingMetrics(registry)
            self._host = EngineHost(
                "encoder",
                "tessera_text.encoder_worker",
                registry,
                lambda ready, engine: build_encoder_tools(ready, engine, metrics, settings),
            )

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Litestar) -> AsyncIterator[None]:
        """Start and end the engine with the app. Without encoders nothing is started."""
        if self._host is None:
            yield
            return
        async with self._host.lifespan(app):
            yield

    async def states(self) -> Mapping[str, str]:
        """The engine's state for `/ready`; nothing without encoders."""
        if self._host is None:
            return {}
        return {"encoders": (await self._host.states())["engine"]}

    def models(self) -> list[Model]:
        """The encoders that are loaded."""
        return [] if self._host is None else self._host.models().data

    def has(self, name: str) -> bool:
        """Whether a loaded encoder has this name."""
        return any(model.id == name for model in self.models())

    @property
    def loading(self) -> bool:
        """Whether there are encoders whose names are not known yet."""
        return self._host is not None and not self.models()

    async def tools(self, name: str, task: Task) -> EncoderTools:
        """The encoder of this name, for a task.

        Raises:
            ModelNotFoundError: there is none.
            InvalidRequestError: it cannot do the task; names those that can.
            UnavailableError: the engine has not loaded its models.
        """
        if self._host is None:
            raise ModelNotFoundError(f"there is no model {name!r} for {task} here: {UNCONFIGURED}", param="model")
        tools = (await self._all()).get(name)
        able = [model.id for model in self.models() if model.card is not None and task in model.card.tasks]
        advice = f"for {task} there is: {', '.join(able)}" if able else f"no encoder here does {task}"
        if tools is None:
            raise ModelNotFoundError(f"there is no model {name!r} for {task} here; {advice}", param="model")
        if task not in tools.card.tasks:
            raise InvalidRequestError(
                f"the model {name!r} does {', '.join(tools.card.tasks)}, not {task}; {advice}",
                param="model",
                code="model_not_capable",
            )
        return tools

    async def first(self, task: Task) -> EncoderTools:
        """The first encoder of the settings that does a task.

        Raises:
            NotFoundError: there is none.
            UnavailableError: the engine has not loaded its models.
        """
        for tools in (await self._all()).values() if self._host is not None else ():
            if task in tools.card.tasks:
                return tools
        raise NotFoundError(
            f'no classifier is configured for {task}; one of [[text.encoders]] needs role = "moderation"'
        )

    async def _all(self) -> dict[str, EncoderTools]:
        assert self._host is not None
        if not self.models():
            problem = self._host.engine.problem
            state = f"is down: {problem.message}" if problem else "is still loading its models"
            raise UnavailableError(f"the encoder engine {state}", retry_after=self._host.engine.ready_in_s())
        try:
            return await self._host.tools(self.models()[0].id)
        except ModelNotFoundError as error:  # the engine restarted with other models in between
            wait_s = self._host.engine.ready_in_s()
            raise UnavailableError("the encoder engine is restarting", retry_after=wait_s) from error


def listed(chat: ModelList, encoders: Encoders) -> ModelList:
    """The answer of `/v1/models`: the language model, then the encoders."""
    return ModelList(data=[*chat.data, *encoders.models()])
