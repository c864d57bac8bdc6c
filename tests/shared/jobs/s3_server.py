"""A real S3-compatible server: moto's, as a process of its own, and Amazon's own client to look into it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import botocore.session
import httpx

from tessera.settings.jobs import ArtifactSettings

START_S = 120.0


class S3Server:
    """moto's server: a process that speaks S3. `client` is Amazon's own."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + START_S
        while True:
            try:
                httpx.get(self.url, timeout=START_S)  # the first answer waits for most of what it imports
                break
            except httpx.TransportError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise AssertionError(log.read_text()) from None
                time.sleep(0.05)
        self.client = botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def settings(self, bucket: str, *, url: str = "", timeout_s: float = 20) -> ArtifactSettings:
        return ArtifactSettings(
            url=f"s3://{bucket}/some/prefix",
            endpoint_url=url or self.url,
            region="us-east-1",
            access_key="test",
            secret_key="test",
            timeout_s=timeout_s,
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def keys(self, bucket: str) -> list[str]:
        return [found["Key"] for found in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])]
