"""The gateway's routes, a file per subject. Each reads a body under its limits and hands it to the proxy."""
