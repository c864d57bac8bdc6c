"""Pages of models as Anthropic's clients turn them: forwards, backwards, and what is no page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tessera.errors import InvalidRequestError
from tessera.web.anthropic_models import model_page
from tessera.wire.models import Model

MODELS = [Model(id=f"m{n}", created=n) for n in range(5)]


def page(**parameters: str) -> Any:
    found = model_page(SimpleNamespace(query_params=parameters), MODELS)  # type: ignore[arg-type]
    return [model.id for model in found.data], found.has_more


def test_pages_forwards() -> None:
    assert page() == (["m0", "m1", "m2", "m3", "m4"], False)
    assert page(limit="2") == (["m0", "m1"], True)
    assert page(limit="2", after_id="m1") == (["m2", "m3"], True)
    assert page(limit="2", after_id="m3") == (["m4"], False)
    assert page(after_id="m4") == ([], False)


def test_pages_backwards() -> None:
    assert page(limit="2", before_id="m4") == (["m2", "m3"], True)
    assert page(limit="2", before_id="m2") == (["m0", "m1"], False)


@pytest.mark.parametrize("wrong", [{"limit": "0"}, {"limit": "x"}, {"limit": "9999"}, {"after_id": "z"}])
def test_what_is_no_page_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        page(**wrong)
