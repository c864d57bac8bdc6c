"""In place of the speech service in tests of faults: transcribes pieces like the real one, slowly, and notes each.

`python transcriber_stand_in.py --port 1 --log pieces.jsonl --nap-s 0.2`. Its transcripts depend on the samples alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import msgspec
import numpy as np
from aiohttp import web

from tessera.hub.cards import read_card
from tessera.wire.engine import Transcribe, Transcript, TranscriptSegment
from tessera.wire.models import Health, Model, ModelList
from tessera_speech.routes.pieces import CONTENT_TYPE, MAX_BYTES, PATH
from tessera_speech.starter.transcription.recipe import WEIGHTS

RATE, WINDOW_S = 16_000, 24.0


def transcript_of(message: Transcribe) -> Transcript:
    """One segment for each window; its tokens depend on the samples."""
    samples = np.frombuffer(message.audio.data, dtype="<f4")
    segments = []
    for first, end in message.windows or []:
        start, stop = (message.offset + first) / RATE, (message.offset + end) / RATE
        loudness = int(1000 * np.abs(samples[first:end]).mean())
        tokens = [66, 61 + loudness % 150, 61 + (end - first) % 150]
        segments.append(TranscriptSegment(start=start, end=stop, token_ids=tokens, words=[], seek=start))
    return Transcript(request_id=message.request_id, segments=segments, language="en", last=True)


def main() -> None:
    """Serve until a signal."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--log", type=Path, required=True)
    arguments.add_argument("--nap-s", type=float, required=True)
    options = arguments.parse_args()
    card = msgspec.structs.replace(read_card(WEIGHTS), sample_rate=RATE, window_s=WINDOW_S)

    def note(what: str, message: Transcribe) -> None:
        assert message.windows is not None
        first = message.offset + message.windows[0][0]
        with options.log.open("a") as log:
            print(json.dumps({"at": time.monotonic(), "what": what, "first": first}), file=log)

    async def models(_: web.Request) -> web.Response:
        found = ModelList(data=[Model(id=card.id, created=0, card=card, device="cpu")])
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def ready(_: web.Request) -> web.Response:
        state = Health(status="ok", service="speech", version="0", parts={"engine": "ok"})
        return web.Response(body=msgspec.json.encode(state), content_type="application/json")

    async def transcribe(request: web.Request) -> web.Response:
        message = msgspec.msgpack.decode(await request.read(), type=Transcribe)
        note("begun", message)
        await asyncio.sleep(options.nap_s)  # how long a piece takes, so that faults find one in flight
        note("transcribed", message)
        return web.Response(body=msgspec.msgpack.encode([transcript_of(message)]), content_type=CONTENT_TYPE)

    app = web.Application(client_max_size=MAX_BYTES)
    app.add_routes([web.get("/v1/models", models), web.get("/ready", ready), web.post(PATH, transcribe)])
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
