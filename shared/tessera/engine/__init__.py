"""The engine: the process that owns models on a device and steps them, and the service's side of talking to it."""
