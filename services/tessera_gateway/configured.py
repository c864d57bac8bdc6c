"""The upstreams that the settings name: the suite's services and other servers. Asks none of them."""

from __future__ import annotations

from tessera.errors import SettingsError
from tessera.settings.tree import Settings
from tessera_gateway.upstream import Upstream


def configured(settings: Settings) -> list[Upstream]:
    """The upstreams of the settings: the suite's services first, then others.

    Raises:
        SettingsError: two upstreams have the same name, or an address is not valid.
    """
    ours = [Upstream(name, settings.service_url(name), ours=True) for name in settings.gateway.services]
    others = [Upstream(entry.name, entry.url, api_key=entry.api_key) for entry in settings.gateway.upstreams]
    names: set[str] = set()
    for upstream in (both := [*ours, *others]):
        if upstream.name in names:
            raise SettingsError(
                f"two upstreams are called {upstream.name!r}; give each in gateway.upstreams its own name"
            )
        names.add(upstream.name)
        if not upstream.url.startswith(("http://", "https://")) or upstream.url.endswith("/v1"):
            raise SettingsError(
                f"the address {upstream.url!r} of upstream {upstream.name!r} must begin with http:// or https:// and "
                f"have no /v1 at its end"
            )
    return both
