"""Guesses as a policy: what is guessed, how much, and when it does not pay."""

from __future__ import annotations

from tessera.sequence.request import SequenceRequest
from tessera.sequence.speculation.policy import RETRY_AFTER, NGrams, Speculation
from tessera.wire.engine import Sampling


def request(tokens: list[int], left: int = 100) -> SequenceRequest:
    return SequenceRequest("r", tokens, Sampling(max_tokens=left))


def test_what_followed_the_longest_known_beginning_is_guessed():
    guesser = NGrams()
    one = request([1, 2, 3, 4, 9, 9, 3, 4, 7, 1, 2, 3, 4])
    assert guesser.guess({one: 3}) == {one: [9, 9, 3]}
    assert guesser.guess({one: 1}) == {one: [9]}


def test_the_latest_place_counts_and_new_tokens_are_learnt():
    guesser = NGrams()
    one = request([1, 2, 5, 1, 2, 6, 1, 2])
    assert guesser.guess({one: 1}) == {one: [6]}
    for token in (8, 1, 2):
        one.append(token)
    assert guesser.guess({one: 1}) == {one: [8]}


def test_without_an_idea_there_is_no_guess():
    guesser = NGrams()
    assert guesser.guess({request([1, 2, 3]): 4, request([1]): 4}) == {}


def test_a_guess_never_goes_beyond_the_answer():
    speculation = Speculation(NGrams(), most=8, max_rows=64)
    one = request([1, 2, 1, 2], left=2)
    assert [len(guess) for guess in speculation.guesses([one]).values()] == [1]
    assert speculation.guesses([request([1, 2, 1, 2], left=1)]) == {}


def test_who_guesses_right_guesses_more_and_who_guesses_wrong_rests():
    speculation = Speculation(NGrams(), most=8, max_rows=64)
    one = request([1, 2] * 20)
    lengths = []
    for _ in range(4):
        (guess,) = speculation.guesses([one]).values()
        lengths.append(len(guess))
        speculation.learn(one, len(guess), len(guess))
    assert lengths == [2, 4, 6, 8]
    for _ in range(4):
        found = speculation.guesses([one])
        if not found:
            break
        speculation.learn(one, len(found[one]), 0)
    assert [bool(speculation.guesses([one])) for _ in range(RETRY_AFTER)].count(True) == 1


def test_steps_stay_within_the_rows_that_are_allowed():
    speculation = Speculation(NGrams(), most=8, max_rows=5)
    requests = [request([1, 2] * 6) for _ in range(4)]
    assert sum(len(guess) for guess in speculation.guesses(requests).values()) == 1


def test_it_rests_where_longer_steps_cost_more_than_they_bring():
    speculation = Speculation(NGrams(), most=8, max_rows=64)
    one = request([1, 2] * 6)
    speculation.timed(1, 0.010)
    speculation.timed(3, 0.011)
    assert speculation.guesses([one])
    for _ in range(60):
        speculation.timed(3, 0.040)
    assert not speculation.guesses([one])


def test_an_ended_request_is_forgotten():
    speculation = Speculation(NGrams(), most=8, max_rows=64)
    one = request([1, 2] * 6)
    speculation.guesses([one])
    speculation.forget(one)
    assert not speculation._paces
    assert not speculation.guesser._seen
