"""`python -m tessera_gateway`: the gateway's HTTP server."""

from __future__ import annotations

import sys

from tessera.errors import SettingsError
from tessera.settings import load as settings_module
from tessera.telemetry import configure_logging
from tessera.web.serve import serve
from tessera_gateway.app import create_app


def main() -> int:
    """Serve until a signal. The exit status is 2, with one line of explanation, if a setting is wrong."""
    try:
        settings = settings_module.load()
        configure_logging("gateway", level=settings.suite.log_level, form=settings.suite.log_format)
        app = create_app(settings)
    except SettingsError as error:
        print(error.message, file=sys.stderr)
        return 2
    serve(app, host=settings.gateway.host, port=settings.gateway.port, http=settings.http)
    return 0


if __name__ == "__main__":
    sys.exit(main())
