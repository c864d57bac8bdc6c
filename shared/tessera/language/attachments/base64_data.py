"""Base64 in JSON, alone or as a data URL, under a limit that is checked before it is decoded."""

from __future__ import annotations

import base64
import binascii
import re

from tessera.errors import InvalidRequestError, PayloadTooLargeError

_DATA_URL = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*;base64,")
MAX_HEAD = 512
"""Most characters of a data URL before its data."""


def decoded(text: str, most_bytes: int, param: str, *, what: str) -> bytes:
    """The bytes.

    Args:
        text: base64, or a data URL of it.
        most_bytes: most bytes.
        param: the field, for errors.
        what: the thing, for errors.

    Raises:
        PayloadTooLargeError: there are more than `most_bytes`.
        InvalidRequestError: it is an address, or the base64 is damaged.
    """
    if text.startswith(("http://", "https://")):
        raise InvalidRequestError(f"`{param}`: remote addresses are not fetched; send base64", param=param)
    if len(text) > most_bytes // 3 * 4 + MAX_HEAD:
        raise PayloadTooLargeError(f"`{param}`: {what} may have {most_bytes} bytes", param=param)
    head = _DATA_URL.match(text, 0, MAX_HEAD)
    try:
        data = base64.b64decode("".join(text[head.end() if head else 0 :].split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(f"`{param}`: the base64 data is broken: {error}", param=param) from error
    if len(data) > most_bytes:
        raise PayloadTooLargeError(f"`{param}`: {what} may have {most_bytes} bytes", param=param)
    if not data:
        raise InvalidRequestError(f"`{param}` is empty", param=param)
    return data
