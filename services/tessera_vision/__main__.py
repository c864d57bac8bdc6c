"""`python -m tessera_vision`: the vision service."""

from __future__ import annotations

from tessera.settings.load import load
from tessera.telemetry import configure_logging
from tessera.web.serve import serve
from tessera_vision.app import create_app


def main() -> None:
    """Serve until a signal."""
    settings = load()
    configure_logging("vision", level=settings.suite.log_level, form=settings.suite.log_format)
    serve(create_app(settings), host=settings.vision.host, port=settings.vision.port, http=settings.http)


if __name__ == "__main__":
    main()
