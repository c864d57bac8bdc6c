"""Makes the artifact store that the settings choose: a directory or a bucket."""

from __future__ import annotations

from tessera.errors import SettingsError
from tessera.jobs.artifacts.store import ArtifactStore, DirectoryArtifacts
from tessera.settings.tree import Settings


def make_artifact_store(settings: Settings) -> ArtifactStore:
    """The artifact store of a suite. Connects to nothing yet.

    Raises:
        SettingsError: the settings name a bucket, and the extra `s3` is not installed.
    """
    if not settings.artifacts.url:
        return DirectoryArtifacts(settings.artifacts_dir)
    try:
        from tessera.jobs.artifacts.s3 import S3Artifacts  # noqa: PLC0415 - the extra `s3` is installed only where a bucket is used
    except ImportError as error:
        raise SettingsError(
            f"`artifacts.url` is {settings.artifacts.url}, which needs the extra s3: pip install 'tessera[s3]' "
            f"({error.name} is missing)"
        ) from error
    return S3Artifacts(settings.artifacts, settings.data_dir / "outgoing")
