"""Stop strings in pieces of text: the same as a search in the whole text, with least lengths as vLLM counts them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.language.stops import StopFinder

pieces = st.lists(st.text("ab", max_size=3), max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True)


def as_vllm_has_it(texts: list[str], stop: list[str], least: int, included: bool) -> tuple[str, bool]:
    """vLLM's `IncrementalDetokenizer.update`, one token at a time: what is shown, and whether it stopped."""
    output, offset = "", 0
    for count, text in enumerate(texts, 1):
        before = len(output)
        output += text
        if count <= least:
            offset = len(output)
            continue
        fresh = len(output) - max(before, offset)
        hits = []
        for one in stop:
            place = output.find(one, max(0, len(output) - fresh - len(one) + 1)) if fresh else -1
            if place >= 0:
                hits.append((place, one))
        if hits:
            place, one = min(hits)
            return output[: place + len(one) if included else place], True
    return output, False


@settings(max_examples=400, deadline=None)
@given(texts=pieces, stop=stops, least=st.integers(0, 6), included=st.booleans())
def test_stop_strings_end_a_text_where_vllm_ends_it(texts, stop, least, included):
    finder = StopFinder(stop, included=included)
    shown = ""
    for count, text in enumerate(texts, 1):
        shown += finder.push(text, may_end=count > least)
        if finder.found:
            break
    else:
        shown += finder.flush()
    assert (shown, finder.found) == as_vllm_has_it(texts, stop, least, included)


@pytest.mark.parametrize(("included", "shown"), [(False, "one "), (True, "one two")])
def test_the_stop_string_is_shown_if_it_is_to_be_included(included, shown):
    finder = StopFinder(["two"], included=included)
    assert finder.push("one t") + finder.push("wo three") == shown
    assert finder.matched == "two"
