"""The table of `tessera up`: as wide as a terminal, and no noise taken for quality."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tessera.suite.report import NOTICE_WIDTH, model_state
from tessera.wire.models import Card, Model

SHIPPED = sorted((Path(__file__).parents[3] / "services").glob("*/starter/**/card.json"))


def state(notice: str | None) -> str:
    card = Card(id="m", family="f", tasks=["chat"], source="here", parameters=1, licence="MIT", notice=notice)
    return model_state("ready", Model(id="m", created=0, card=card))


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (None, "ready"),
        ("random weights: the output is noise", "ready, random weights"),
        ("made for shapes, in clips of 17 frames", "ready, made for shapes"),
        ("transcribes computer voices and 1675 words", "ready, transcribes computer voices …"),
    ],
)
def test_a_state_has_the_first_words_of_a_notice(notice: str | None, words: str) -> None:
    assert state(notice) == words


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(path.parents[3])))
def test_notices_of_what_we_ship_leave_the_table_narrow(path: Path) -> None:
    card = msgspec.json.decode(path.read_bytes(), type=Card)
    assert card.notice is not None
    shown = state(card.notice).removeprefix("ready, ")
    assert 10 < len(shown) <= NOTICE_WIDTH
    assert card.notice.startswith(shown.removesuffix(" …"))
