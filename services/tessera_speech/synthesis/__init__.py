"""From text to an audio file: voices, the request to the engine, encoding."""
