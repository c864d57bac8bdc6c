"""The encoder engine's process: loads the encoders of the settings and steps them (see `tessera.engine.client`)."""

from __future__ import annotations

import time

from tessera.engine.process import run
from tessera.settings.load import load
from tessera.telemetry import configure_logging


def main() -> None:
    """Read the settings, load the models, serve the socket."""
    settings = load()
    configure_logging("encoder-engine", level=settings.suite.log_level, form=settings.suite.log_format)
    started = time.perf_counter()
    # Imported here, so that a wrong setting is reported before imports that take seconds.
    from tessera.encoders.start import start_encoder_engine  # noqa: PLC0415

    run(
        lambda: start_encoder_engine(settings.text.encoders, settings.text.encoder_engine, settings.models_dir, started)
    )


if __name__ == "__main__":
    main()
