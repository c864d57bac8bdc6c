"""Caches encoded prompts by the hash of their text, so that a repeated prompt does not run the text encoder.

Knows no encoders.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from tessera.diffusion.request import EncodedPrompt

CACHED_PROMPTS = 64
"""Encoded prompts that a model keeps by default."""


class PromptCache:
    """A cache that drops the least recently used prompt first. Thread-safe."""

    def __init__(self, capacity: int = CACHED_PROMPTS) -> None:
        self.capacity = capacity
        self.hits = 0
        self._lock = threading.Lock()
        self._encoded: OrderedDict[str, EncodedPrompt] = OrderedDict()

    def get(self, text: str) -> EncodedPrompt | None:
        """Return the encoding of `text`; None when it is not cached."""
        key = self._key(text)
        with self._lock:
            if key not in self._encoded:
                return None
            self.hits += 1
            self._encoded.move_to_end(key)
            return self._encoded[key]

    def put(self, text: str, encoded: EncodedPrompt) -> None:
        """Cache an encoding."""
        with self._lock:
            self._encoded[self._key(text)] = encoded
            while len(self._encoded) > self.capacity:
                self._encoded.popitem(last=False)

    @staticmethod
    def _key(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()
