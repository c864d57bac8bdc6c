"""`/v1/models` for clients of Anthropic's, who send the header `anthropic-version` and read another shape.

Knows no route and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tessera.errors import InvalidRequestError
from tessera.web.dependencies import HTTPRequest
from tessera.wire.message_answers import ModelInfo, ModelPage
from tessera.wire.models import Model

VERSION_HEADER = "anthropic-version"
MOST_MODELS = 1000
"""Most models of a page."""
PAGE = 20
"""Models of a page whose client names no number."""


def is_anthropic(request: HTTPRequest) -> bool:
    """Whether a request comes from a client of Anthropic's."""
    return VERSION_HEADER in request.headers


def model_info(model: Model) -> ModelInfo:
    """A model in Anthropic's shape; the time is the beginning of time where nobody knows it."""
    return ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.card.context_length if model.card else None,
    )


def model_page(request: HTTPRequest, models: Sequence[Model]) -> ModelPage:
    """The page of models that a request asks for by `limit`, `after_id` and `before_id`.

    Raises:
        InvalidRequestError: a parameter is wrong; names it.
    """
    limit, after, before = (request.query_params.get(name) for name in ("limit", "after_id", "before_id"))
    if limit is not None and not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MOST_MODELS):
        raise InvalidRequestError(f"`limit` must be a number from 1 to {MOST_MODELS}", param="limit")
    size = int(limit) if limit is not None else PAGE
    ids = [model.id for model in models]
    for name, value in (("after_id", after), ("before_id", before)):
        if value is not None and value not in ids:
            raise InvalidRequestError(f"`{name}`: there is no model {value!r} here", param=name)
    start = ids.index(after) + 1 if after is not None else 0
    end = ids.index(before) if before is not None else len(ids)
    if before is not None and after is None:
        start, more = max(0, end - size), end > size
    else:
        more = end - start > size
        end = min(end, start + size)
    shown = [model_info(model) for model in models[start:end]]
    return ModelPage(
        data=shown,
        has_more=more,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )
