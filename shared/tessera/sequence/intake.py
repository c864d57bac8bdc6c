"""What comes into the sequence engine: checked, and told apart for the prefix cache."""

from __future__ import annotations

import hashlib
import math
import time

from tessera.errors import InvalidRequestError
from tessera.sequence.request import SequenceRequest
from tessera.wire.engine import Array, Embed, Generate


def check_tokens(message: Generate | Embed, vocabulary: int) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        InvalidRequestError: there are none, or one is outside the vocabulary.
    """
    if not message.token_ids:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    biased = list(message.sampling.logit_bias) if isinstance(message, Generate) else []
    for param, tokens in (("prompt", message.token_ids), ("logit_bias", biased)):
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            raise InvalidRequestError(
                f"token {wrong[0]} is outside the model's vocabulary of {vocabulary}", param=param
            )


def request_of(message: Generate | Embed, *, isolated: bool) -> SequenceRequest:
    """A message as the scheduler has it.

    Args:
        message: checked.
        isolated: whether tenants share no cached prefixes, whatever their salts.
    """
    return SequenceRequest(
        message.request_id,
        list(message.token_ids),
        message.sampling if isinstance(message, Generate) else None,
        priority=message.priority,
        tenant=message.tenant,
        salt=f"{message.tenant}\0{message.cache_salt}" if isolated else message.cache_salt,
        pin=isinstance(message, Generate) and message.pin,
        deadline=math.inf if message.deadline_s is None else time.monotonic() + message.deadline_s,
    )


def media_cache_ids(media: dict[str, Array], positions: list[int]) -> dict[int, int]:
    """What stands for image tokens in the prefix cache: negative, and the same for the same media alone.

    Args:
        media: of one request, all of it.
        positions: of the image tokens in the prompt, in order.
    """
    digest = hashlib.sha256()
    for name in sorted(media):
        digest.update(f"{name}:{media[name].dtype}:{media[name].shape}:".encode())
        digest.update(media[name].data)
    base = int.from_bytes(digest.digest()[:7], "big") << 20
    return {position: -(base + index + 1) for index, position in enumerate(positions)}
