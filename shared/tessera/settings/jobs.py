"""The settings of jobs, of their artifacts and of webhooks."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from tessera.settings.section import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, described

_BUCKET = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9_.-]*)*/?$")


class JobSettings(Section, frozen=True, kw_only=True):
    """The durable job queue."""

    lease_s: Annotated[
        PositiveFloat, described("Seconds that a worker may send no heartbeat before its job goes to another worker.")
    ] = 15.0
    reap_every_s: Annotated[PositiveFloat, described("Seconds between two searches for expired leases.")] = 3.0
    max_attempts: Annotated[Positive, described("Most times that one job is started before it fails for good.")] = 3
    backoff_s: Annotated[
        NonNegativeFloat,
        described("Seconds between an error and the second attempt. Each further attempt waits twice as long."),
    ] = 5.0
    max_queued_per_key: Annotated[
        Positive, described("Most unfinished jobs of one API key. Further ones are answered 429.")
    ] = 64
    short_s: Annotated[
        PositiveFloat,
        described(
            "Jobs that are expected to take fewer seconds than this count as short: half of each queue's time and a "
            "slot in each worker are reserved for them."
        ),
    ] = 30.0
    least_free_bytes: Annotated[
        NonNegative,
        described(
            "Free bytes of the disks of the embedded Redis and of the directory of artifacts below which no job is "
            "accepted (507), so that those accepted before can end."
        ),
    ] = 64 * 1024 * 1024
    keep_s: Annotated[Positive, described("Seconds that an ended job and its artifacts are kept.")] = 7 * 24 * 3600


class ArtifactSettings(Section, frozen=True, kw_only=True):
    """The place where the files of jobs are kept."""

    url: Annotated[
        str,
        described(
            "Bucket for artifacts, as `s3://bucket/prefix`; needs the extra `s3`. Empty: the directory `artifacts` in "
            "`suite.data`."
        ),
    ] = ""
    endpoint_url: Annotated[
        str, described("Address of an S3-compatible server (MinIO, Ceph, R2). Empty: Amazon's own.")
    ] = ""
    region: Annotated[str, described("Region of the bucket. Empty: the one that Amazon's own tools find.")] = ""
    access_key: Annotated[
        str,
        described("Access key of the bucket. Empty: what Amazon's own tools find (environment, profile, role)."),
    ] = ""
    secret_key: Annotated[str, described("Secret that belongs to `access_key`; set both or none.")] = ""
    timeout_s: Annotated[PositiveFloat, described("Seconds that the bucket's server may send nothing.")] = 30.0

    def __post_init__(self) -> None:
        """Refuse an address that names no bucket, and half a pair of keys. Raises ValueError."""
        if self.url and not _BUCKET.match(self.url):
            raise ValueError("`artifacts.url` must be empty or s3://bucket or s3://bucket/prefix")
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("`artifacts.access_key` and `artifacts.secret_key` go together: set both or none")


class WebhookSettings(Section, frozen=True, kw_only=True):
    """Notices about ended jobs to the address that a client names as `webhook_url`."""

    secret: Annotated[
        str,
        described(
            "Secret that signs each delivery so that OpenAI's SDK can verify it: `whsec_` and base64. Empty: requests "
            "with `webhook_url` are refused."
        ),
    ] = ""
    allow_hosts: Annotated[
        list[str],
        described(
            "Hosts that may have private addresses and plain http. All other hosts must be public and use https."
        ),
    ] = []  # noqa: RUF012 - msgspec copies it for each
    attempts: Annotated[
        Positive, described("Most deliveries that are tried. Each waits four times as long as the one before.")
    ] = 8
    timeout_s: Annotated[PositiveFloat, described("Seconds that one delivery may take.")] = 10.0

    def __post_init__(self) -> None:
        """Refuse a secret that receivers could not verify. Raises ValueError without showing the secret."""
        if self.secret and not self.key:
            raise ValueError("`webhooks.secret` must be `whsec_` and base64, as `openssl rand -base64 32` makes it")

    @property
    def key(self) -> bytes:
        """The decoded signing key; empty when `secret` is empty or malformed."""
        prefix, _, encoded = self.secret.partition("_")
        if prefix != "whsec":
            return b""
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return b""
