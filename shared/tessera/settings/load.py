"""All settings of the suite: frozen, read once from TOML and the environment, refused when unknown.

`load()` is the only reader of the environment. Order, later wins: defaults, the TOML file, `TESSERA_<SECTION>__<KEY>`
variables (and `REDIS_URL`), command-line overrides. The documented example `compose/tessera.toml` is made from the
descriptions in this file (`tessera.settings.example`), and a test keeps the two equal.

Does not know: what a value means to the part that reads it, beyond its type and range.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tessera.errors import SettingsError
from tessera.settings.jobs import ArtifactSettings, JobSettings, WebhookSettings
from tessera.settings.sequence import (
    Port,
    Positive,
    PositiveFloat,
    ReasoningParser,
    Section,
    SequenceEngineSettings,
    Service,
    ToolParser,
    says,
)
from tessera.settings.video import SpeechSettings, VideoSettings


class SuiteSettings(Section, frozen=True, kw_only=True):
    """What all processes share."""

    data: Annotated[str, says("Where state lives: Redis' append-only file, artifacts, logs. `~` is your home.")] = (
        "~/.local/share/tessera"
    )
    models: Annotated[str, says("Where fetched and generated models live. Empty: `models` inside `data`.")] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], says("Least severe level that is logged.")] = (
        "info"
    )
    log_format: Annotated[Literal["text", "json"], says("`text` for people, `json` for collectors.")] = "text"


class RedisSettings(Section, frozen=True, kw_only=True):
    """The job store and Celery's broker."""

    url: Annotated[
        str,
        says("redis://, rediss:// or unix:// address. Empty: `tessera up` starts an embedded server in `data`."),
    ] = ""
    timeout_s: Annotated[PositiveFloat, says("Seconds until a silent Redis counts as down.")] = 5.0


class UpstreamSettings(Section, frozen=True, kw_only=True):
    """A server that the gateway routes to: one of our services, or anything that speaks OpenAI's API."""

    name: Annotated[str, says("How logs and metrics call it.")]
    url: Annotated[str, says("Base address without `/v1`.")]
    api_key: Annotated[str, says("Sent as a bearer token when not empty.")] = ""


class GatewaySettings(Section, frozen=True, kw_only=True):
    """The only public process."""

    host: Annotated[str, says("Address to listen on. `0.0.0.0` opens it to the network: set `api_keys` then.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, says("TCP port.")] = 8000
    api_keys: Annotated[
        list[str], says("Accepted bearer tokens, or their `sha256:<hex>`. Empty: everybody may use it.")
    ] = []  # noqa: RUF012 - msgspec copies it
    max_body_bytes: Annotated[Positive, says("Largest request body, files included.")] = 64 * 1024 * 1024
    max_json_bytes: Annotated[Positive, says("Largest JSON body.")] = 16 * 1024 * 1024
    connect_timeout_s: Annotated[PositiveFloat, says("Seconds to reach an upstream.")] = 5.0
    idle_timeout_s: Annotated[PositiveFloat, says("Seconds an upstream may stay silent within an answer.")] = 300.0
    max_live_sessions: Annotated[Positive, says("Live speech sessions (WebSockets) of one key at once.")] = 16
    services: Annotated[list[Service], says("Which of our services it fronts.")] = msgspec.field(
        default_factory=lambda: list(get_args(Service))
    )
    upstreams: Annotated[
        list[UpstreamSettings],
        says("Servers beside our own services: `name`, `url`, `api_key` of any that speaks OpenAI's API (a vLLM)."),
    ] = []  # noqa: RUF012 - msgspec copies it


class TextSettings(Section, frozen=True, kw_only=True):
    """Language models."""

    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, says("TCP port.")] = 8001
    url: Annotated[str, says("Where the gateway reaches it. Empty: http://host:port.")] = ""
    model: Annotated[str, says("Name of a starter, path of a model directory, or hf:owner/name of a model hub.")] = (
        "smollm2-135m-instruct"
    )
    max_output_tokens: Annotated[Positive, says("Most tokens one answer may have.")] = 4096
    max_choices: Annotated[Positive, says("Largest `n`.")] = 16
    pinned_prompts: Annotated[
        list[str], says("System prompts that are computed at the start and stay in the prefix cache.")
    ] = msgspec.field(default_factory=list)
    tool_parser: Annotated[ToolParser, says("How the model writes tool calls. `auto`: as its template shows.")] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, says("How the model writes thoughts. `auto`: as its template shows.")
    ] = "auto"
    engine: SequenceEngineSettings = SequenceEngineSettings()


class VisionSettings(Section, frozen=True, kw_only=True):
    """Vision-language models."""

    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, says("TCP port.")] = 8002
    url: Annotated[str, says("Where the gateway reaches it. Empty: http://host:port.")] = ""
    model: Annotated[str, says("Name of a starter, path of a model directory, or hf:owner/name of a model hub.")] = (
        "scenes-vision"
    )
    max_output_tokens: Annotated[Positive, says("Most tokens one answer may have.")] = 1024
    max_choices: Annotated[Positive, says("Largest `n`.")] = 4
    max_images: Annotated[Positive, says("Most images in one request.")] = 8
    max_image_bytes: Annotated[Positive, says("Largest encoded image.")] = 20 * 1024 * 1024
    max_image_pixels: Annotated[Positive, says("Most pixels, checked from the header before decoding.")] = 33_554_432
    tool_parser: Annotated[ToolParser, says("How the model writes tool calls. `auto`: as its template shows.")] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, says("How the model writes thoughts. `auto`: as its template shows.")
    ] = "auto"
    engine: SequenceEngineSettings = SequenceEngineSettings(
        kv_cache_bytes=64 * 1024 * 1024, max_batch_tokens=1024, max_running=8, max_waiting=64
    )


class Settings(Section, frozen=True, kw_only=True):
    """The whole of `tessera.toml`."""

    suite: SuiteSettings = SuiteSettings()
    redis: RedisSettings = RedisSettings()
    gateway: GatewaySettings = GatewaySettings()
    text: TextSettings = TextSettings()
    vision: VisionSettings = VisionSettings()
    video: VideoSettings = VideoSettings()
    speech: SpeechSettings = SpeechSettings()
    jobs: JobSettings = JobSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    webhooks: WebhookSettings = WebhookSettings()

    @property
    def data_dir(self) -> Path:
        """Where state lives, absolute."""
        return Path(self.suite.data).expanduser().absolute()

    @property
    def models_dir(self) -> Path:
        """Where models live, absolute."""
        return Path(self.suite.models).expanduser().absolute() if self.suite.models else self.data_dir / "models"

    @property
    def artifacts_dir(self) -> Path:
        """Where job results live when they are in no bucket, absolute."""
        return self.data_dir / "artifacts"

    def service_url(self, service: Service) -> str:
        """Where the gateway reaches one of our services, without a trailing slash."""
        section = getattr(self, service)
        return (section.url or f"http://{section.host}:{section.port}").rstrip("/")

    @property
    def redis_url(self) -> str:
        """The configured Redis, or the socket that the embedded one listens on."""
        return self.redis.url or f"unix://{self.data_dir / 'redis' / 'redis.sock'}"


PREFIX = "TESSERA_"


def load(
    path: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings.

    Args:
        path: the TOML file; None takes `$TESSERA_CONFIG`, else `tessera.toml` in the working directory if it exists.
        environment: instead of the process's own.
        overrides: nested values that win over everything, e.g. `{"gateway": {"port": 9000}}`.

    Raises:
        SettingsError: a file that is not there or not TOML, an unknown key, a wrong value. Names the key.
    """
    environment = os.environ if environment is None else environment
    chosen = config_path(path, environment=environment)
    values: dict[str, Any] = _read_toml(chosen) if chosen is not None else {}
    _merge(values, _from_environment(environment))
    _merge(values, overrides or {})
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(_explain(str(error), chosen)) from error


def config_path(path: Path | None, *, environment: Mapping[str, str] | None = None) -> Path | None:
    """Which file `load` reads for the same arguments; None when there is none to read."""
    named = (os.environ if environment is None else environment).get("TESSERA_CONFIG")
    if path is None and named:
        return Path(named)
    return path or (Path("tessera.toml") if Path("tessera.toml").is_file() else None)


OF_OUR_PROCESSES = {"GOMP_SPINCOUNT": "5000", "LRU_CACHE_CAPACITY": "256", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}
"""What libraries read before `main` runs, so that only who starts a process can say it; what is set already stays.

`GOMP_SPINCOUNT`: how often an OpenMP thread (libgomp, PyTorch's) looks for more work before it sleeps. Its own 300,000
are some milliseconds on a core that somebody else computes on: a decode step of sixteen took 17 ms instead of 10. So
many are enough from one operation to the next.

The others: for how many shapes oneDNN, and PyTorch on top of it, keep compiled convolutions and products. With their
own 1,024 of each a speech engine, where every sentence has a length of its own, had 620 MB after 2,000 requests and
still grew; with 256 it has 470 MB from some 600 requests on, and is no slower.
"""


def environment() -> dict[str, str]:
    """The environment of this process, to be handed on whole to processes of ours."""
    return {**OF_OUR_PROCESSES, **os.environ}


def stay_on_this_machine() -> None:
    """Let PyTorch's processes that compute together meet over loopback alone; before they do."""
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = "lo"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"`{key}` is a section: write [{key}] in the file, not {key} = …")
            _merge(inner, value)
        else:
            into[key] = value


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if environment.get("REDIS_URL"):
        values["redis"] = {"url": environment["REDIS_URL"]}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name == "TESSERA_CONFIG":
            continue
        keys = name.removeprefix(PREFIX).lower().split("__")
        kind = _kind_of(keys)
        if kind is None:
            raise SettingsError(
                f"the environment variable {name} is no setting; `tessera config` lists all keys "
                f"(TESSERA_GATEWAY__PORT is [gateway] port)"
            )
        section = values
        for key in keys[:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = _parse(name, text, kind)
    return values


def _kind_of(keys: list[str]) -> Any:
    kind: Any = Settings
    for key in keys:
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            return None
        kind = get_type_hints(kind).get(key)
    return None if kind is None or (isinstance(kind, type) and issubclass(kind, Section)) else kind


def _parse(name: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is list:
        if get_args(kind) != (UpstreamSettings,):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise SettingsError(f"{name}: {error}; write it as JSON") from error
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}={text!r}: {error}") from error


def _explain(message: str, path: Path | None) -> str:
    where = f" in {path}" if path else ""
    if "unknown field" in message:
        field = message.split("`")[1]
        place = message.rsplit("`$.", 1)[1].rstrip("`") if "`$." in message else ""
        key = f"{place}.{field}" if place else field
        return f"unknown key `{key}`{where}; `tessera config` lists all keys with their defaults"
    return f"{message.replace('`$.', '`')}{where}"
