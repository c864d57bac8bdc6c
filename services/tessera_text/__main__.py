"""`python -m tessera_text`: the text service."""

from __future__ import annotations

from tessera.settings.load import load
from tessera.telemetry import configure_logging
from tessera.web.serve import serve
from tessera_text.app import create_app


def main() -> None:
    """Serve until a signal."""
    settings = load()
    configure_logging("text", level=settings.suite.log_level, form=settings.suite.log_format)
    serve(create_app(settings), host=settings.text.host, port=settings.text.port, http=settings.http)


if __name__ == "__main__":
    main()
