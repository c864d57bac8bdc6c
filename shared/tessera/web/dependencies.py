"""How handlers get their collaborators: by name and type, from Litestar's dependency injection.

A handler names what it needs as a typed parameter, and nothing reads `state`:

    async def retrieve(self, request: HTTPRequest, jobs: Injected[JobResources], video_id: VideoId) -> Response[Video]

An app (or the router of a resource) gives each name its object, made once: `provide` for one that exists before the app
serves, `Opened` for one that needs the event loop and is made in the app's lifespan:

    proxy = Opened(open_proxy)
    build_app(…, lifespan=[proxy.lifespan], dependencies={"proxy": proxy.provide, "models": provide(host.models)})

A name that no router or app provides is an error when the app is built. Knows no collaborator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeAlias, TypeVar

from litestar import Litestar, Request
from litestar.di import NamedDependency, Provide
from litestar.params import SkipValidation

T = TypeVar("T")

HTTPRequest: TypeAlias = Request[Any, Any, Any]
"""A request as a handler takes it."""
Injected: TypeAlias = NamedDependency[SkipValidation[T]]
"""Type of a handler's parameter whose value is the dependency of the same name, passed as it is."""


def provide(value: object) -> Provide:
    """The provider of one object, the same for every request."""

    def provided() -> object:
        return value

    return Provide(provided, sync_to_thread=False)


class Opened(Generic[T]):
    """A collaborator that lives exactly as long as the app serves.

    Args:
        opening: makes it and, at the end, closes it. Called once, by the app's lifespan.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._opening = opening
        self._value: list[T] = []

    @asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Keep the collaborator open while the app serves; passed to `build_app(lifespan=…)`."""
        async with self._opening() as value:
            self._value = [value]
            try:
                yield
            finally:
                self._value = []

    @property
    def value(self) -> T:
        """The collaborator. Only while the app serves."""
        assert self._value, "used outside of the app's lifespan"
        return self._value[0]

    @property
    def provide(self) -> Provide:
        """The provider of the collaborator; passed to `build_app(dependencies=…)`."""

        def provided() -> object:
            return self.value

        return Provide(provided, sync_to_thread=False)
