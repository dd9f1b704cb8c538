"""What repeats: which stretches are found, how they are split otherwise, and what is tried when."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import charwise
from charwise import CharLM, Effort
from charwise.coverings.rows import EvaluatedRows
from charwise.engines.ngram import NgramLM
from charwise.evaluation.methods import walk_beam
from charwise.known_text.calls import evaluate
from charwise.known_text.ranges import KnownText
from charwise.known_text.repeats import Repeats
from charwise.known_text.respellings import occurrences, respellings
from charwise.known_text.rounds import Rounds
from charwise.known_text.vertex import Branch, contexts_of
from conftest import Data
from models import Model, table

# ---- what is found ------------------------------------------------------------------------------


def starts_of(model: Model, canonical: list[int]) -> list[int]:
    return np.cumsum([0, *map(model.index.length, canonical)]).tolist()


def test_occurrences_and_their_other_splits():
    model = table([b"a", b"b", b" ", b"ab", b"ba"], {(): [0.2, 0.1, 0.2, 0.2, 0.2, 0.1]})
    text, canonical = b"ab ab abab", [3, 2, 3, 2, 3, 3]
    found = occurrences(text, starts_of(model, canonical))
    assert {stretch: [span[:2] for span in spans] for stretch, spans in found.items()} == {
        b"ab": [(0, 2), (3, 5), (6, 8), (8, 10)]
    }
    [respelled] = respellings(text, canonical, model.index)
    assert respelled.stretch == b"ab"
    assert [place.start for place in respelled.places] == [0, 3, 6, 8]
    assert {place.tokens for place in respelled.places} == {(0, 1)}


def test_a_word_is_found_in_other_tokens_and_at_the_beginning_of_another_word():
    whole, parts = [b"abcd", b" abcd", b"(abcd", b"_abcde"], [b"ab", b" ab", b"_ab", b"cd", b"e"]
    model = table([*whole, *parts, b"(", b"f"], {(): [1 / 12] * 12})
    text, canonical = b"abcd abcd(abcd_abcde", [0, 1, 2, 3]
    found = {one.stretch: one.places for one in respellings(text, canonical, model.index)}
    assert [place.tokens for place in found[b"abcd"]] == [(4, 7), (5, 7), (9, 4, 7), (6, 7, 8)]
    assert [(place.start, place.stop) for place in found[b"abcd"]] == [
        (0, 4), (4, 9), (9, 14), (14, 20),
    ]  # fmt: skip


def test_runs_are_respelled_whatever_their_lengths_are():
    model = table([b" ", b"  ", b"   ", b"a"], {(): [0.2] * 5})
    text, canonical = b"  a   a a", [1, 3, 2, 3, 0, 3]
    found = {one.stretch: one.places for one in respellings(text, canonical, model.index)}
    assert [place.tokens for place in found[b" "]] == [(0, 0), (0, 0, 0)]
    # The first is spelled so canonically: it counts where the other is spelled so, too.
    assert [place.tokens for place in found[b"  "]] == [(1,), (1, 0)]
    assert b"   " not in found


def test_a_long_run_is_taken_apart_where_its_tokens_end():
    """Into pieces that a size divides: tokens of two do not end after every three."""
    model = table([b"-", b"--", b"---", b"a"], {(): [0.2] * 5})
    for text, canonical in ((b"-" * 26, [1] * 13), (b"-" * 26 + b"a--", [1] * 13 + [3, 1])):
        found = {one.stretch: one.places for one in respellings(text, canonical, model.index)}
        ones = [place.tokens for place in found[b"-"]]
        assert ones == [(0, 0)] * (13 if len(text) == 26 else 14)
        last = [(1,)] * (1 if len(text) == 26 else 2)  # as it is
        assert [place.tokens for place in found[b"---"]] == [(2, 2)] * 4 + last
    assert respellings(b"-" * 24, [1] * 12, model.index) == []


def test_text_after_the_last_canonical_token_is_left_alone():
    model = table([b"a", b"b", b"ab"], {(): [0.25] * 4})
    assert [one.stretch for one in respellings(b"ab!ab?", [2], model.index)] == []


# ---- what is tried ------------------------------------------------------------------------------


def begun(lm: CharLM, text: bytes) -> Rounds:
    """Rounds whose canonical tokens are evaluated, and summed over."""
    known, canonical = KnownText.of(text, lm.index), lm.vocabulary.encode(text)
    evaluated = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    rounds = Rounds(evaluated, 0, known, canonical, Effort(0.05, 0.1))
    evaluate([(rounds, rounds.wants())])
    rounds.lattice.sum(len(text) + 1)
    return rounds


def tried(rounds: Rounds, repeats: Repeats) -> list[list[Branch]]:
    """All that is tried, call by call."""
    calls = []
    while branches := repeats.branches(rounds.lattice.root):
        calls.append(branches)
        evaluate([(rounds, branches)])
    return calls


def room(depth: int, position: int) -> bool:
    return False


def test_what_repeats_is_tried_at_one_place_then_at_two_then_at_all():
    """The way to the second place is paid for where the first is worth it, and so on."""
    lm, between = charwise.load(), b" and then something else, "
    text = between.join([b"frobnicate"] * 5) + b"."
    rounds = begun(lm, text)
    found = respellings(text, rounds.base.tokens, lm.index)
    repeats = Repeats(found, list(rounds.base.tokens), lm.index, 0, len(text), 10**6, room)
    apart = len(b"frobnicate" + between)
    sizes = [
        [sum(map(lm.index.length, branch.tokens)) for branch in call]
        for call in tried(rounds, repeats)
    ]
    assert max(sizes[0]) <= len(b"frobnicate")
    assert len(sizes[1]) < len(sizes[0])
    assert apart < max(sizes[1]) <= apart + len(b"frobnicate")
    assert max(sizes[2]) == 2 * apart
    assert repeats.done


def test_a_gain_is_by_how_much_a_path_is_likelier():
    """Against the sums of the tokens' log-probabilities; the likelier path becomes the base."""
    lm = charwise.load()
    text = b"frobnicate " * 5
    rounds = begun(lm, text)
    canonical = list(rounds.base.tokens)
    found = respellings(text, canonical, lm.index)
    repeats = Repeats(found, canonical, lm.index, 0, len(text), 10**6, room)
    tried(rounds, repeats)

    def log_p(tokens: list[int]) -> float:
        vertex, total = rounds.lattice.root, 0.0
        for token in tokens[:-1]:
            total += math.log(vertex.mass(token))
            vertex = vertex.children[token]
        return total

    assert lm.vocabulary.decode(repeats.base.tokens) == text
    assert log_p(repeats.base.tokens) > log_p(canonical) + 1


def trying(
    text: bytes, most: int = 512, deepest: Callable[[int, int], bool] = room
) -> tuple[Repeats, Rounds]:
    """What tries the other splits of a text, and the canonical tokens, all evaluated.

    Not those that are tried when all others were.
    """
    model = table([b"a", b"b", b" ", b"ab", b"ba"], {(): [0.1, 0.2, 0.2, 0.25, 0.15, 0.1]})
    known, canonical = KnownText.of(text, model.index), model.vocabulary.encode(text)
    rounds = Rounds(model.evaluated(), 0, known, canonical, Effort(0.05, 0.1))
    evaluate([(rounds, rounds.wants())])
    rounds.lattice.sum(len(text) + 1)
    found = [one for one in respellings(text, canonical, model.index) if not one.waits]
    repeats = Repeats(found, list(canonical), model.index, 0, len(text), most, deepest)
    return repeats, rounds


@pytest.mark.parametrize(("most", "followed"), [(14, [b"ba", b"ab"]), (13, [b"ba"]), (2, [])])
def test_the_likeliest_respelling_goes_first_while_there_is_room(most: int, followed: list[bytes]):
    """[b a] loses less to [ba] than [a b] to [ab]: it gets the room, though it comes later."""
    repeats, rounds = trying(b"ab ba " * 4, most)
    ways = {b"ba": [1, 0, 2, 3, 2, 1, 0], b"ab": [0, 1, 2, 4, 2, 0, 1]}  # to the second place
    calls = tried(rounds, repeats)
    assert [list(branch.tokens) for branch in calls[0]] == [ways[t][:1] for t in (b"ba", b"ab")]
    asked = [list(branch.tokens) for call in calls[1:2] for branch in call]
    assert asked == [ways[stretch][1:] for stretch in followed]


@pytest.mark.parametrize(("times", "untried"), [(4, {b"ab", b"ba"}), (3, set())])
def test_a_respelling_that_leaves_no_room_in_the_window_is_not_tried(
    times: int, untried: set[bytes]
):
    """It is asked how deep the last context is, and where; of what is seldom no doubt is left."""
    asked = []
    repeats, rounds = trying(b"ab ba " * times, deepest=lambda *at: bool(asked.append(at)) or True)
    assert tried(rounds, repeats) == []
    assert {one.stretch for one in repeats.untried} == untried
    assert asked == [(3, 4), (1, 1)]


def test_what_there_was_no_room_to_try_is_doubted_from_its_second_place_on():
    text = b"ab ba ab ba ab ba ab ba "
    repeats, rounds = trying(text, most=2)
    tried(rounds, repeats)
    log_prefix = rounds.lattice.log_prefix
    surprisals = -np.diff(log_prefix)
    expected = np.zeros(len(text))
    for place in (6, 9, 12, 15, 18, 21):  # all but the first of b"ab" and of b"ba"
        expected[place : place + 2] = 0.03 * surprisals[place : place + 2]
    assert expected[21:].any()
    for start in (0, 3, 7):
        doubts = repeats.doubts(start, log_prefix[start:])
        assert doubts == pytest.approx(expected[start:])
    assert repeats.doubts(0, log_prefix[:9]) == pytest.approx(expected[:8])


def test_what_repeats_beyond_the_portion_is_tried_too():
    """The second place is behind the first portion, and in the section."""
    lm = charwise.load()
    between = b"import os, sys, json, math, heapq, bisect, types, typing, random, string, dis\n"
    text = b"# the kangaroo was here\n" + between + b"# and the kangaroo again\n"
    rounds = begun(lm, text)
    assert rounds.base.portion(0, 32).stop < text.rindex(b"kangaroo")
    repeats = rounds._sections.repeats
    assert repeats is not None
    calls = tried(rounds, repeats)
    spelled = [lm.vocabulary.decode(branch.tokens) for call in calls for branch in call]
    assert any(between in more and more.endswith(b"kangaroo") for more in spelled)
    assert repeats.base.tokens != list(rounds.base.tokens)


def test_a_stretch_that_is_split_so_elsewhere_counts_there_too():
    """`ab` is one token here, and two there: either split at both, and the sum says which."""
    model = table([b"a", b"b", b"ab", b"-"], {(): [0.2] * 5})
    found = respellings(b"ab-ab", [2, 3, 0, 1], model.index)
    assert [[place.tokens for place in one.places] for one in found] == [
        [(2,), (2,)], [(0, 1), (0, 1)],
    ]  # fmt: skip


def test_a_place_that_is_split_so_already_pays_for_others():
    """Canonically ` (|github`, and ` g|ithub` elsewhere: ` (|g|ithub` pays there."""
    text = (
        b"      - name: Build and push Full Docker image by digest\n        id: build_full\n"
        b"        if: ${{ (github.event_name == 'push' || github.event_name == '"
    )
    lm = charwise.load()
    rounds = begun(lm, text)
    repeats = rounds._sections.repeats
    assert repeats is not None
    tried(rounds, repeats)
    _, whole = lm.vocabulary.encode(b" (github")
    assert whole in lm.vocabulary.encode(text)
    assert whole not in repeats.base.tokens


def test_a_split_that_loses_much_at_first_may_gain_it_back():
    """`e|a|x` loses much on `e|ax` at its first place, and has gained far more at its last."""
    text = b"    mov eax, [ebp+8]\n    mov ebx, [ebp+12]\n    add eax, ebx\n    mov ecx, eax\n"
    lm = charwise.load()
    rounds = begun(lm, text)
    repeats = rounds._sections.repeats
    assert repeats is not None
    tried(rounds, repeats)
    _, ax = lm.vocabulary.encode(b" eax")
    assert lm.vocabulary.encode(text).count(ax) == 3
    assert ax not in repeats.base.tokens
    score, fine = lm.score(text), lm.score(text, preset="accurate")
    assert score.logprobs.sum() == pytest.approx(fine.logprobs.sum(), abs=3.0)


def spaced(text: bytes, most: int = 10**6) -> tuple[Repeats, Rounds]:
    """What tries the other splits of letters and blanks; the model likes `·|··`."""
    tokens = [b"a", b" ", b"  ", b"   "]
    rows = {(token,): [0.3, 0.05, 0.05, 0.5, 0.1] for token in range(5)}
    rows[1,] = [0.01, 0.01, 0.96, 0.01, 0.01]
    model = table(tokens, rows, order=2)
    known, canonical = KnownText.of(text, model.index), model.vocabulary.encode(text)
    rounds = Rounds(model.evaluated(), 0, known, canonical, Effort(0.05, 0.1))
    evaluate([(rounds, rounds.wants())])
    rounds.lattice.sum(len(text) + 1)
    found = respellings(text, canonical, model.index)
    return Repeats(found, list(canonical), model.index, 0, len(text), most, room), rounds


def test_patterns_of_runs_are_found_beside_tokens_of_one_size():
    repeats, _ = spaced(b"   a" * 4)
    ways = {one.places[0].tokens: one.waits for one in repeats._found}
    assert ways == {(1, 1, 1): False, (2, 1): False, (1, 2): True}
    seldom, _ = spaced(b"   a   a")
    assert {one.waits for one in seldom._found} == {False, True}


@pytest.mark.parametrize(("times", "followed"), [(3, False), (4, True)])
def test_a_pattern_is_tried_where_it_is_another_at_four_places(times: int, followed: bool):
    """And when all others have come to their end."""
    repeats, rounds = spaced(b"   a" * times)
    calls = tried(rounds, repeats)
    asked = [[list(branch.tokens[:2]) for branch in call] for call in calls]
    assert [1, 1] in asked[0] or [1, 1] in asked[1]
    begun = [n for n, call in enumerate(asked) if [1] in call]  # and, after that, `··|a`
    assert bool(begun) == any([2, 0] in call for call in asked) == followed
    assert not begun or begun[0] > max(n for n, call in enumerate(asked) if [1, 1] in call)


def test_nothing_is_tried_beyond_what_has_no_mass():
    """After `b` comes no `-`: the base path has no log-probability from there on."""
    sure = [0.3, 0.2, 0.3, 0.1, 0.1]
    rows = {(token,): [0.5, 0.2, 0.2, 0.0, 0.1] if token == 1 else sure for token in range(5)}
    model = table([b"a", b"b", b"ab", b"-"], {(): sure})
    lm = CharLM(NgramLM(model.vocabulary, 2, rows), preset="exact")
    rounds = begun(lm, b"ab-ab-ab")
    tokens = [0, 1, 3, 0, 1, 3, 2]
    evaluate([(rounds, [Branch(rounds.lattice.root, tokens[:-1])])])
    found = respellings(b"ab-ab-ab", tokens, lm.index)
    repeats = Repeats(found, tokens, lm.index, 0, 8, 100, room)
    assert tried(rounds, repeats) == []
    assert [at for at in range(9) if repeats.base.reaches(at)] == [0, 1, 2]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_few_rounds_end_what_is_tried_with_the_portion(rounds: int):
    """What is let go of then is not asked for again, whether one text is scored or several."""
    lm = charwise.load()
    phrase = "the frobnicate function is here, and then something else; "
    effort, finer = Effort(0.05, 0.1, rounds=rounds), Effort(0.05, 0.1)
    best = lm.score(phrase * 12, preset=finer).logprobs.sum()
    assert abs(lm.score(phrase * 12, preset=effort).logprobs.sum() - best) < 2
    texts = [phrase * 3, (phrase * 3)[:-3] + "xy"]
    for text, score in zip(texts, lm.scores(texts, preset=effort), strict=True):
        assert abs(score.logprobs.sum() - lm.score(text, preset=finer).logprobs.sum()) < 6


def test_a_respelling_of_one_section_goes_on_in_the_next(monkeypatch: pytest.MonkeyPatch):
    """Sections of 16 tokens: [r, ob] and so on is found in the first, and the base path later."""
    lm = charwise.load()
    text = b"frobnicate " * 12
    canonical = list(lm.vocabulary.encode(text))
    # Sections of 16 tokens have too few places for what is tried when all else was.
    monkeypatch.setattr("charwise.known_text.respellings.words", lambda *_: ())
    whole = lm.score(text)
    monkeypatch.setattr("charwise.known_text.base_path.SECTION", 16)
    rounds = begun(lm, text)
    while wanted := rounds.wants():
        evaluate([(rounds, wanted)])
    assert list(rounds.base.tokens) != canonical
    assert lm.vocabulary.decode(rounds.base.tokens) == text
    later = lm.vocabulary.decode(rounds.base.tokens[:32])
    assert list(rounds.base.tokens[32:]) != list(lm.vocabulary.encode(text[len(later) :]))
    assert lm.score(text).logprobs.sum() > whole.logprobs.sum() - 1  # sums are too low, if anything


def log_p(lm: CharLM, tokens: list[int]) -> float:
    """The sum over a single path: no more than the text's prefix probability."""
    tree = lm.engine.tree(lm.vocabulary.bos_ids, list(enumerate(tokens)))
    rows = tree.logprobs(list(range(len(tokens))))
    return sum(float(row[token]) for row, token in zip(rows, tokens, strict=True))


def tiles(lm: CharLM, text: bytes, size: int) -> list[int]:
    """Tokens of so many bytes each, and what is left as its own token."""
    id_of = {token: id for id, token in enumerate(lm.vocabulary.tokens) if token}
    return [id_of[text[at : at + size]] for at in range(0, len(text), size)]


@pytest.mark.parametrize(("byte", "count", "size"), [("\n", 80, 3), ("-", 200, 8), ("-", 400, 8)])
@pytest.mark.parametrize("after", ["", "a{0}{0}b"])
@pytest.mark.parametrize("preset", ["default", "accurate"])
def test_a_long_run_is_spelled_as_the_model_likes_it(
    byte: str, count: int, size: int, after: str, preset: str
):
    """A path of equal tokens has more than the canonical one, and is found: alone or not."""
    lm = charwise.load()
    text = byte * count
    usual = log_p(lm, list(lm.vocabulary.encode(text)))
    best = log_p(lm, tiles(lm, text.encode(), size))
    assert best > usual + 5
    score = lm.score(text + after.format(byte), preset=preset)
    assert score.logprobs[:count].sum() > best


def test_a_way_that_begins_after_the_usual_tokens_were_seen_once():
    """[- | ·- | · - | · - | …] has 10 nats on every way that is the same at all places."""
    lm = charwise.load()
    text = b"- " * 40
    [space], [dash] = lm.vocabulary.encode(b" "), lm.vocabulary.encode(b"-")
    usual = list(lm.vocabulary.encode(text))
    late = [*usual[:2], *[space, dash] * 38, space]
    assert lm.vocabulary.decode(late) == text
    assert log_p(lm, late) > log_p(lm, usual) + 5
    assert lm.score(text).logprobs.sum() > log_p(lm, late)


def test_what_many_places_may_pay_is_followed_through_more_than_what_few_may(data: Data):
    """[t he] costs 10.5 nats where it comes first, and 16 on the way, and pays after 11 places."""
    lm = charwise.load(data.folder / "models" / "tinystories-3m", device="cpu")
    text = "the " * 12
    first, the, *_ = usual = list(lm.vocabulary.encode(text))
    id_of = {token: id for id, token in enumerate(lm.vocabulary.tokens) if token}
    t, he = id_of[b" t"], id_of[b"he"]
    mixed = [first, *[t, he] * 3, the, *[t, he] * 2, the, *[t, he] * 2, the, t, he, usual[-1]]
    assert lm.vocabulary.decode(mixed) == text.encode()
    assert log_p(lm, mixed) > log_p(lm, usual) + 15
    assert lm.score(text).logprobs.sum() > log_p(lm, mixed)


def test_doubts_are_stated_and_said_but_not_worked_on(monkeypatch: pytest.MonkeyPatch):
    """No finer θ takes away what there was no room to try."""
    lm, text = charwise.load(), "def area(width, height):\n    return width * height\n"
    sure = lm.score(text)

    def doubts(self: Repeats, start: int, log_prefix: np.ndarray) -> np.ndarray:
        return np.full(len(log_prefix) - 1, 0.5)

    monkeypatch.setattr(Repeats, "doubts", doubts)
    doubtful = lm.score(text)
    assert doubtful.contexts == sure.contexts
    assert doubtful.error == pytest.approx(sure.error + 0.5)
    assert (sure.limited, doubtful.limited) == (False, True)


def test_contexts_are_asked_for_once():
    """What other trials have evaluated takes no room."""
    repeats, rounds = trying(b"ab ba " * 4)
    new = sum(contexts_of(call) for call in [repeats.branches(rounds.lattice.root)])
    assert new == 2
    assert repeats._left == 512 - 2


@pytest.mark.parametrize(
    ("word", "times"), [("zumquandle ", 10), ("niradepa ", 8), ("mohoduwax ", 8)]
)
def test_an_unknown_word_over_and_over(word: str, times: int) -> None:
    """Its best tokens differ from the canonical ones in several places, and pay when it is back."""
    lm, text = charwise.load(), (word * times).encode()
    found = lm.score(text).logprobs.sum()
    least = walk_beam(lm, text, k=32).logprobs.sum()
    assert found > least - 0.02 * math.log(2) * len(text)
