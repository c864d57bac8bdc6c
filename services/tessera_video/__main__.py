"""`python -m tessera_video`: the video service's HTTP server. Its workers are processes of their own."""

from __future__ import annotations

from tessera.settings.load import load
from tessera.telemetry import configure_logging
from tessera.web.serve import serve
from tessera_video.app import create_app


def main() -> None:
    """Serve until a signal."""
    settings = load()
    configure_logging("video", level=settings.suite.log_level, form=settings.suite.log_format)
    serve(create_app(settings), host=settings.video.host, port=settings.video.port, http=settings.http)


if __name__ == "__main__":
    main()
