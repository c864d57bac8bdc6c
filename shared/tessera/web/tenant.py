"""Whose request it is, between the gateway and our services: a name without a secret, for fair shares.

The gateway says it in a header; a service believes it, so only the gateway may reach a service. Does not know keys.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from litestar.types import Scope

TENANT_HEADER = "x-tessera-tenant"
tenant_var: ContextVar[str] = ContextVar("tenant", default="")
"""Whose request the current task works on; empty when nobody said."""
_NAME = re.compile(rb"^[A-Za-z0-9._:-]{1,64}$")


def tenant_from(scope: Scope) -> str:
    """What the header says, or nothing when it is not there or not a short plain name."""
    for name, value in scope["headers"]:
        if name == TENANT_HEADER.encode() and _NAME.match(value):
            return value.decode()
    return ""
