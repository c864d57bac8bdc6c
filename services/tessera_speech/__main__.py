"""`python -m tessera_speech`: the speech service's HTTP process."""

from __future__ import annotations

from tessera.settings import load as configuration
from tessera.telemetry import configure_logging
from tessera.web.serve import serve
from tessera_speech.app import create_app


def main() -> None:
    """Serve until a signal."""
    settings = configuration.load()
    configure_logging("speech", level=settings.suite.log_level, form=settings.suite.log_format)
    serve(create_app(settings), host=settings.speech.host, port=settings.speech.port, http=settings.http)


if __name__ == "__main__":
    main()
