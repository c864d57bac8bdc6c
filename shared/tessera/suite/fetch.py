"""Fetches the language model while everything else starts, in a process of its own that imports no torch.

The text engine asks for the same model and waits for the same lock, so their order does not matter. Knows nothing about
how a model is fetched or made (`tessera.hub.store`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping

from tessera.errors import TesseraError
from tessera.hub import store
from tessera.processes import die_with_parent
from tessera.settings.tree import Settings
from tessera.suite.child import Announce
from tessera.suite.parts import Selection

STOP_S = 3.0


async def fetch_missing(
    settings: Settings, selection: Selection, environment: Mapping[str, str], announce: Announce
) -> None:
    """Pull the language model if it is wanted and missing. A failure is announced; the text engine reports it too."""
    if "text" not in selection.services:
        return
    try:
        if store.locate(settings.text.model, settings.models_dir) is not None:
            return
    except TesseraError as error:
        announce("model", error.message)
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tessera.cli", "models", "pull", settings.text.model),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            announce("model", line.decode(errors="replace").rstrip())
        await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt the process so that it removes its unfinished directory; then kill it with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
