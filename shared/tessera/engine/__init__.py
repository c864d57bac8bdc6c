"""The process that owns a model on a device and steps it, and the service's side of talking to that process."""
