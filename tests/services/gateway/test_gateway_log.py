"""What a client sends forges no line of the gateway's log."""

from __future__ import annotations

import io
import logging

import httpx
import pytest

from tessera.telemetry import TextFormatter


@pytest.mark.parametrize(
    "path", ["/a%0A12:00:00%20info%20forged", "/%1B%5B2Jcleared", "/%E2%80%AEreversed", "/%C2%9B2J"]
)
def test_an_encoded_control_character_of_a_path_is_escaped_in_the_access_log(upstream, gateway, path):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(TextFormatter("gateway"))
    logger = logging.getLogger("tessera.access")
    logger.addHandler(handler)
    before, logger.level = logger.level, logging.INFO
    try:
        assert httpx.get(gateway(upstream("m")).url + path).status_code == 404
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert written.getvalue().count("\n") == 1
    assert written.getvalue().rstrip("\n").isprintable()
