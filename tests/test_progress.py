"""`progress`: what takes seconds says how far it is, and changes nothing."""

from __future__ import annotations

import pytest

import charwise

TEXTS = ["import os\n", "for i in range(3):\n    print(i)\n" * 12, "", "def f(x):\n", "é\n" * 300]


def test_scores_say_how_many_bytes_are_done():
    lm = charwise.load(preset="fast")
    told: list[tuple[int, int]] = []
    scores = lm.scores(TEXTS, progress=lambda *state: told.append(state))
    total = sum(len(text.encode()) for text in TEXTS)
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == (total, total)
    assert {of for _, of in told} == {total}
    for score, again in zip(scores, lm.scores(TEXTS), strict=True):
        assert (score.logprobs == again.logprobs).all()


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 0}, {"stop": ["("]}])
def test_completions_say_how_many_bytes_are_drawn(settings: dict[str, object]):
    state = charwise.load().state("for i in rang")
    told: list[tuple[int, int]] = []
    found = state.complete(
        n=3, max_new_bytes=20, progress=lambda *state: told.append(state), **settings
    )
    assert told == sorted(told)
    assert told[-1] == (60, 60)
    assert found == state.complete(n=3, max_new_bytes=20, **settings)


def test_what_progress_raises_ends_the_call_and_leaves_the_state_as_it_was():
    def refuse(done: int, total: int) -> None:
        raise KeyboardInterrupt

    state = charwise.load().state("for i in rang")
    before = state.complete(max_new_bytes=8)
    with pytest.raises(KeyboardInterrupt):
        state.complete(max_new_bytes=8, progress=refuse)
    assert state.complete(max_new_bytes=8) == before
