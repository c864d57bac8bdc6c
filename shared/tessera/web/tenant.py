"""The tenant of a request, between the gateway and the services: a name without a secret, for fair shares.

The gateway sends it in a header and a service trusts it, so only the gateway may reach a service. Does not know keys.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from litestar.types import Scope

TENANT_HEADER = "x-tessera-tenant"
tenant_var: ContextVar[str] = ContextVar("tenant", default="")
"""Tenant of the request that the current task works on; empty if the request named none."""
_HEADER = TENANT_HEADER.encode()
_NAME = re.compile(rb"^[A-Za-z0-9._:-]{1,64}$")


def tenant_from(scope: Scope) -> str:
    """The tenant of the header; empty if the header is missing or no short plain name."""
    for name, value in scope["headers"]:
        if name == _HEADER and _NAME.match(value):
            return value.decode()
    return ""
