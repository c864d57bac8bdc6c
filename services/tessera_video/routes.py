"""The routes of the video service: `/v1/videos` and `/v1/models`, both defined once for every service.

Does not know how a video is made.
"""

from __future__ import annotations

from litestar.types import ControllerRouterHandler

from tessera.api.mounting import MountedRoutes
from tessera.web.models import MODEL_ROUTES


def routes(videos: MountedRoutes) -> list[ControllerRouterHandler]:
    """Return all routes but the operational ones."""
    return [*videos.route_handlers, *MODEL_ROUTES]
