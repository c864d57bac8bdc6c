"""Encoded prompts by the hash of their text: whoever asks for the same words again waits for no text encoder.

Does not know encoders.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from tessera.diffusion.request import EncodedPrompt

CACHED_PROMPTS = 64


class PromptCache:
    """The least recently used is dropped first. Safe in several threads."""

    def __init__(self, capacity: int = CACHED_PROMPTS) -> None:
        self.capacity = capacity
        self.hits = 0
        self._lock = threading.Lock()
        self._found: OrderedDict[str, EncodedPrompt] = OrderedDict()

    def get(self, text: str) -> EncodedPrompt | None:
        """The encoding of `text`, when it is there."""
        key = self._key(text)
        with self._lock:
            if key not in self._found:
                return None
            self.hits += 1
            self._found.move_to_end(key)
            return self._found[key]

    def put(self, text: str, encoded: EncodedPrompt) -> None:
        """Remember an encoding."""
        with self._lock:
            self._found[self._key(text)] = encoded
            while len(self._found) > self.capacity:
                self._found.popitem(last=False)

    @staticmethod
    def _key(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()
