"""schemathesis over the gateway's whole API description: whatever it sends, no answer is a 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = 8
"""Requests that are made for each operation in each phase."""


def test_no_request_that_the_document_allows_or_forbids_fails_the_server(gateway, tmp_path):
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{gateway.url}/docs/openapi.json"),
            *("--checks", "not_a_server_error", "--max-examples", str(EXAMPLES), "--seed", "21", "--workers", "2"),
            *("--phases", "examples,coverage,fuzzing", "--request-timeout", "60"),
            *("--header", f"Authorization: Bearer {gateway.key}"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
