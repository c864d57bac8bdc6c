"""The settings of jobs, of their artifacts and of webhooks."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from tessera.settings.section import NonNegativeFloat, Positive, PositiveFloat, Section, says

_BUCKET = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9_.-]*)*/?$")


class JobSettings(Section, frozen=True, kw_only=True):
    """The durable queue."""

    lease_s: Annotated[PositiveFloat, says("Seconds a worker may be silent before its job goes to another.")] = 15.0
    reap_every_s: Annotated[PositiveFloat, says("Seconds between two looks for lost jobs.")] = 3.0
    max_attempts: Annotated[Positive, says("Starts of one job before it is failed for good.")] = 3
    backoff_s: Annotated[
        NonNegativeFloat, says("Seconds between an error and the second attempt; twice as many before each further.")
    ] = 5.0
    max_queued_per_key: Annotated[Positive, says("Unfinished jobs of one API key; more are answered 429.")] = 64
    short_s: Annotated[
        PositiveFloat, says("Jobs expected to take less have half of each queue's time and a slot in each worker.")
    ] = 30.0
    keep_s: Annotated[Positive, says("Seconds that an ended job and its artifacts are kept.")] = 7 * 24 * 3600


class ArtifactSettings(Section, frozen=True, kw_only=True):
    """Where the files of jobs are kept."""

    url: Annotated[
        str,
        says("`s3://bucket/prefix`, which needs the extra `s3`. Empty: the directory `artifacts` in `suite.data`."),
    ] = ""
    endpoint_url: Annotated[str, says("Of an S3-compatible server (MinIO, Ceph, R2). Empty: Amazon's.")] = ""
    region: Annotated[str, says("Of the bucket. Empty: as Amazon's own tools find it.")] = ""
    access_key: Annotated[str, says("Empty: as Amazon's own tools find it (environment, profile, role).")] = ""
    secret_key: Annotated[str, says("Of the access key.")] = ""
    timeout_s: Annotated[PositiveFloat, says("Seconds that a bucket may be silent.")] = 30.0

    def __post_init__(self) -> None:
        """Refuse addresses that are none. Raises ValueError."""
        if self.url and not _BUCKET.match(self.url):
            raise ValueError("`artifacts.url` must be empty or s3://bucket or s3://bucket/prefix")
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("`artifacts.access_key` and `artifacts.secret_key` go together: set both or none")


class WebhookSettings(Section, frozen=True, kw_only=True):
    """Ended jobs that are told to an address of the client's choice (`webhook_url`)."""

    secret: Annotated[
        str,
        says("Signs what is sent, as OpenAI's SDK checks it: whsec_ and base64. Empty: `webhook_url` is refused."),
    ] = ""
    allow_hosts: Annotated[
        list[str], says("Hosts that may be private, and plain http. Others are public and https, or refused.")
    ] = []  # noqa: RUF012 - msgspec copies it for each
    attempts: Annotated[Positive, says("Deliveries tried before one is given up; each waits four times longer.")] = 8
    timeout_s: Annotated[PositiveFloat, says("Seconds that one delivery may take.")] = 10.0

    def __post_init__(self) -> None:
        """Refuse a secret that receivers could not check. Raises ValueError, which does not show it."""
        if self.secret and not self.key:
            raise ValueError("`webhooks.secret` must be `whsec_` and base64, as `openssl rand -base64 32` makes it")

    @property
    def key(self) -> bytes:
        """What the secret stands for; empty when there is none, or it is not one."""
        prefix, _, encoded = self.secret.partition("_")
        if prefix != "whsec":
            return b""
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return b""
