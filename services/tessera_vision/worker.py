"""The vision engine's process: loads the vision-language model and steps it (see `tessera.engine.client`)."""

from __future__ import annotations

import time

from tessera.engine.process import run
from tessera.settings.load import load
from tessera.telemetry import configure_logging


def main() -> None:
    """Read the settings, load the model, serve the socket."""
    settings = load()
    configure_logging("vision-engine", level=settings.suite.log_level, form=settings.suite.log_format)
    started = time.perf_counter()
    # Imported here, so that a wrong setting is reported before imports that take seconds.
    from tessera.sequence.start import start_sequence_engine  # noqa: PLC0415

    run(lambda: start_sequence_engine(settings.vision.model, settings.vision.engine, settings.models_dir, started))


if __name__ == "__main__":
    main()
