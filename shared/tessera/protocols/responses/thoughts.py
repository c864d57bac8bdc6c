"""`encrypted_content` of a thought: how a client that has nothing kept brings it back.

The thought itself is in the answer, too, so there is nothing to hide, and a client may write any history it likes, so
there is nothing to authenticate. The content is therefore an encoding and no encryption.
"""

from __future__ import annotations

import base64
import binascii

from tessera.errors import InvalidRequestError

PREFIX = "tessera1."


def sealed(thought: str) -> str:
    """A thought as `encrypted_content`."""
    return PREFIX + base64.urlsafe_b64encode(thought.encode("utf-8", "surrogatepass")).decode()


def opened(content: str, *, at: str) -> str:
    """The thought of an `encrypted_content`.

    Raises:
        InvalidRequestError: it was not made here.
    """
    try:
        if not content.startswith(PREFIX):
            raise ValueError("another server's")
        return base64.b64decode(content[len(PREFIX) :], altchars=b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError(
            f"`{at}` was not made by this server and cannot be read here; leave the item out",
            param=at,
            code="invalid_encrypted_content",
        ) from error
