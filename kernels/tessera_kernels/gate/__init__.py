"""The compile gate: every kernel launch compiled for every architecture, with no device. Run it with `python -m`."""
