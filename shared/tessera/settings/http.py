"""The settings that all HTTP servers share: the gateway and every service."""

from __future__ import annotations

import re
from typing import Annotated

from tessera.settings.section import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, described

_ORIGIN = re.compile(r"^(\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s]+)$", re.IGNORECASE)


class HttpSettings(Section, frozen=True, kw_only=True):
    """What every HTTP server of the suite allows: the gateway and each service."""

    allow_hosts: Annotated[
        list[str],
        described(
            "Names by which browsers may call the servers, beside IP addresses, `localhost`, names without a dot and "
            "names of local networks. Other names are answered 421 where no key is needed, because any web page could "
            "take one. `*.example.com` allows all names below `example.com`, `*` any name."
        ),
    ] = []  # noqa: RUF012 - msgspec copies it
    allow_origins: Annotated[
        list[str],
        described(
            "Web pages beside the servers' own that may use the API, as `https://app.example.com`; they are answered "
            "CORS headers. Other pages are answered 403 where no key is needed. `*` allows all pages."
        ),
    ] = []  # noqa: RUF012 - msgspec copies it
    drain_s: Annotated[
        NonNegativeFloat,
        described(
            "Seconds that open answers, streams and live sessions have to end when a server is told to stop. What has "
            "not ended then ends with an error event. The platform's own grace must be longer by `unready_s` and about "
            "ten seconds."
        ),
    ] = 30.0
    unready_s: Annotated[
        NonNegativeFloat,
        described(
            "Seconds for which a server that is told to stop still accepts requests while `/ready` answers 503, so "
            "that load balancers turn away first. 0 where there is none."
        ),
    ] = 0.0
    body_idle_s: Annotated[
        PositiveFloat, described("Seconds that a client may send nothing of a request body that it began. Then: 408.")
    ] = 30.0
    body_bytes_per_s: Annotated[
        Positive,
        described(
            "Fewest bytes a second, on average from `body_idle_s` seconds on, at which a request body must arrive. "
            "Slower ones are answered 408."
        ),
    ] = 1024
    body_memory_bytes: Annotated[
        Positive,
        described(
            "Most bytes of request bodies that one server holds in memory for all requests together. Further requests "
            "are answered 429 until some have ended."
        ),
    ] = 256 * 1024 * 1024
    spool_bytes: Annotated[
        NonNegative,
        described("Bytes of a form above which the gateway keeps it in a file without a name until it is answered."),
    ] = 1024 * 1024
    spool_dir: Annotated[
        str, described("Directory of such files, on a disk and not in memory. Empty: `spool` in `suite.data`.")
    ] = ""

    def __post_init__(self) -> None:
        """Refuse origins that no browser sends, and hosts with a scheme or a port. Raises ValueError."""
        for origin in self.allow_origins:
            if not _ORIGIN.match(origin):
                raise ValueError(f"`http.allow_origins`: {origin!r} is not `*` or scheme://host:port without a path")
        for host in self.allow_hosts:
            if "/" in host or host.count(":") == 1 or host.startswith("["):
                raise ValueError(f"`http.allow_hosts`: {host!r} is not a name alone, without a scheme and a port")
