"""Pins prompts, so that their keys and values stay in an engine's prefix cache. Takes tokens; knows no template."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence

from tessera.engine.client import EngineClient
from tessera.wire.engine import Generate, Sampling


async def pin(engine: EngineClient, prompts: Sequence[list[int]]) -> None:
    """Have an engine compute prompts and keep them. Called after each start of the engine, which empties the cache.

    Raises:
        TesseraError: the engine cannot keep them; the service is not ready then.
    """
    for token_ids in prompts:
        message = Generate(request_id=uuid.uuid4().hex, token_ids=token_ids, sampling=Sampling(max_tokens=1), pin=True)
        async with contextlib.aclosing(engine.request(message)) as answers:
            async for _ in answers:
                pass
