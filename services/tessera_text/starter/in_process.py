"""Asks a language model through the engine that serves, inside this process. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from tessera.device.hardware import choose
from tessera.hub.cards import read_card
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.runner.build import build_runner
from tessera.settings.sequence import SequenceEngineSettings
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.engine import Generate, GeneratedTokens, Ready, Sampling


class InProcessModel:
    """A model that is loaded in this process.

    Args:
        directory: directory of the model, which has a chat template.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(self, directory: Path, device: str) -> None:
        self._directory = directory
        self._settings = SequenceEngineSettings(max_running=128, max_batch_tokens=2048, kv_cache_bytes=64 << 20)
        self._place = choose(cast("Literal['auto', 'cpu', 'cuda']", device))
        self.runner = build_runner(
            directory,
            self._place,
            page_size=self._settings.page_size,
            kv_cache_bytes=self._settings.kv_cache_bytes,
            weights=self._settings.weights,  # the scheme that serves it
        )

    def answers(self, texts: Sequence[str], *, max_tokens: int) -> list[str]:
        """The greedy answer to each text, which is sent as one user message."""
        ready = Ready(
            device=self._place.name, cards=[read_card(self._directory)], directories=[str(self._directory)], report={}
        )
        settings = SequenceEngineSettings(
            max_running=self._settings.max_running,
            max_batch_tokens=self._settings.max_batch_tokens,
            max_waiting=len(texts) + 1,
        )
        engine = SequenceEngine(self.runner, settings, ready)
        template, tokenizer = ChatTemplate.of(self._directory), Tokenizer(self._directory)
        assert template is not None
        for index, text in enumerate(texts):
            rendered = template.render([{"role": "user", "content": text}])
            ids = tokenizer.encode(rendered, add_special_tokens=False)
            sampling = Sampling(max_tokens=max_tokens, temperature=0.0, stop_ids=tokenizer.stop_ids)
            engine.submit(Generate(request_id=str(index), token_ids=ids, sampling=sampling))
        tokens: list[list[int]] = [[] for _ in texts]
        while engine.has_work():
            for event in engine.step():
                assert isinstance(event, GeneratedTokens), event
                tokens[int(event.request_id)].extend(event.token_ids)
        return [tokenizer.decode(ids) for ids in tokens]
