"""Events on their way through: however they are cut up, bytes stay as they are and only whole events go out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tessera_gateway.events import MAX_HELD_BYTES, WholeEvents

ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=9).map(bytes.hex), st.sampled_from(ENDS))),
    st.text("ab", max_size=5),
    st.lists(st.integers(1, 12), min_size=1),
)
def test_any_way_of_cutting_keeps_the_bytes_and_the_events_whole(events, tail, sizes):
    data = b"".join(b"data: " + text.encode() + end for text, end in events) + tail.encode()
    whole, out, at, turn = WholeEvents(), b"", 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        ready = whole.feed(data[at : at + size])
        assert not ready or ready.endswith(ENDS)
        out, at, turn = out + ready, at + size, turn + 1
    assert out + whole.rest() == data
    assert whole.rest() == b""


def test_an_event_without_an_end_is_not_held_without_end():
    whole = WholeEvents()
    piece = b"x" * 65536
    fed = [whole.feed(piece) for _ in range(2 * MAX_HELD_BYTES // len(piece) + 2)]
    assert any(fed)
    assert sum(map(len, fed)) + len(whole.rest()) == len(piece) * len(fed)
