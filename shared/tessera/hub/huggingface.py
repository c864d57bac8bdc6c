"""Models from a Hugging Face hub, by `hf:owner/name` or `hf:owner/name@revision`: only files that cannot run code.

The library resumes downloads, fetches ranges in parallel, and reads `HF_TOKEN` and `HF_ENDPOINT`. This module chooses
the files, keeps a partial download for the next try, and derives a card. Knows no model architecture.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub.cards import read_card, weight_files
from tessera.wire.models import Card

PREFIX = "hf:"
"""Beginning of a model's name that says it is on a hub."""
ALLOWED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
"""Files that are downloaded: weights, configurations, templates, vocabularies. No pickles, no Python."""
_NAME = re.compile(r"^hf:(?P<repository>[\w.-]{1,96}/[\w.-]{1,96})(@(?P<revision>[\w./-]{1,128}))?$")


class Reference(msgspec.Struct, frozen=True):
    """A repository at a revision."""

    repository: str
    """Repository as owner/name."""
    revision: str | None
    """Branch, tag or commit; None is the default branch."""

    @property
    def folder(self) -> str:
        """Name of its folder in the models directory."""
        name = self.repository.replace("/", "--")
        return f"hf--{name}" + (f"@{self.revision.replace('/', '-')}" if self.revision else "")


def parse(model: str) -> Reference:
    """Parse `hf:owner/name@revision`.

    Raises:
        ModelLoadError: the name does not have that form.
    """
    match = _NAME.match(model)
    if match is None or ".." in model:
        raise ModelLoadError(f"{model!r} is not a hub model; write hf:owner/name or hf:owner/name@revision")
    return Reference(match["repository"], match["revision"])


def download(reference: Reference, directory: Path, report: Callable[[str], None]) -> Card:
    """Download a repository's safe files into `directory`, resuming where an earlier try stopped.

    Raises:
        ModelLoadError: the library is missing, the hub cannot be reached, has no such model or denies access, or the
            model has no safetensors weights.
    """
    try:
        import huggingface_hub  # noqa: PLC0415 - comes with the extras, not with the gateway
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]  # noqa: PLC0415
    except ImportError as error:
        raise ModelLoadError(
            "hub models need the library huggingface_hub: install tessera with one of its extras, e.g. tessera[text]"
        ) from error
    name = reference.repository
    try:
        report(f"asking the hub for {name}")
        info: Any = huggingface_hub.HfApi().model_info(name, revision=reference.revision, files_metadata=True)
        wanted = [file for file in info.siblings if Path(file.rfilename).match("*.safetensors")]
        if not wanted:
            raise ModelLoadError(
                f"the hub model {name} has no safetensors weights; others (pickles, GGUF) are not loaded from a hub"
            )
        gigabytes = sum(file.size or 0 for file in wanted) / 1e9
        report(f"fetching {name} ({gigabytes:.2f} GB of weights); a stopped download goes on where it was")
        huggingface_hub.snapshot_download(name, revision=info.sha, local_dir=directory, allow_patterns=list(ALLOWED))
    except HfHubHTTPError as error:
        raise ModelLoadError(f"the hub does not give {name}: {_reason(error)}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"cannot fetch {name} from the hub: {error}. Try again, or set the model to a directory that you have"
        ) from error
    derived = read_card(directory)
    if not weight_files(directory):
        raise ModelLoadError(f"the hub gave no weights of {name}")
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return msgspec.structs.replace(
        derived, id=name, source=f"hf:{name}", revision=str(info.sha), licence=str(licence or "unknown")
    )


def _reason(error: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in {401, 403}:
        return "it is private or gated; accept its terms on the hub and set HF_TOKEN"
    if status == 404:
        return "there is no such model or revision"
    return str(error).splitlines()[0]
