"""The base path that is scouted: detours that pay, and races that pay later."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given

import charwise
import charwise.known_text.races
import charwise.known_text.scout
import charwise.known_text.sections
from charwise.coverings.reference import prefix_probability
from charwise.coverings.rows import EvaluatedRows
from charwise.engines.ngram import NgramLM
from charwise.known_text.best_path import better, detours
from charwise.known_text.effort import for_tolerance
from charwise.known_text.races import Races
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds
from charwise.known_text.vertex import Vertex
from charwise.known_text.walk import Walk
from charwise.known_text.windows import Text, score_text
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Opening
from charwise.tokens.vocabulary import Vocabulary
from models import Case, Model, cases, examples, table

A, B, AB, BA = range(4)
VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"ba"])


def vertex(parent: Vertex, token: int, mass: float) -> Vertex:
    """An evaluated context after another one, with this mass."""
    end = parent.position + len(VOCABULARY.tokens[token] or b"")
    child = Vertex(0, end, (token, *parent.tail), parent.depth + 1)
    parent.edges.append((token, end, mass))
    parent.follow(token, child)
    return child


def test_the_better_of_two_detours_in_a_row():
    """`abab`, canonically [ab, ab]: [a, b] is 4 times as likely at first, and half so later."""
    root = Vertex(0, 0, (), 0)
    first = vertex(root, AB, 0.1)
    vertex(first, AB, 0.5)
    vertex(vertex(root, A, 0.5), B, 0.8)
    vertex(vertex(first, A, 0.5), B, 0.5)
    base = Walk([AB, AB], SortedVocabulary(VOCABULARY))
    base.follow(root)
    gains = {(one.start, one.stop): math.exp(one.gain) for one in detours(base, 0, 4)}
    assert gains == pytest.approx({(0, 2): 4.0, (2, 4): 0.5})
    assert better(base, 0, 4, least=1.0) == [A, B, AB]
    assert better(base, 0, 4, least=1.5) is None  # log 4 is 1.39
    assert better(base, 2, 4, least=0.1) is None


def test_a_detour_counts_as_far_as_it_was_followed():
    """What it gains where it comes back is lost on the way."""
    root = Vertex(0, 0, (), 0)
    vertex(vertex(root, AB, 0.1), AB, 0.5)
    back = vertex(vertex(root, A, 0.5), B, 0.8)
    vertex(back, AB, 0.01)
    base = Walk([AB, AB], SortedVocabulary(VOCABULARY))
    base.follow(root)
    [detour] = detours(base, 0, 4)
    assert (detour.stop, detour.tokens) == (4, (A, B, AB))
    assert better(base, 0, 4, least=0.1) is None


def test_detours_that_go_over_several_tokens():
    """`aba`: [ab, a] against [a, ba]."""
    root = Vertex(0, 0, (), 0)
    vertex(vertex(root, AB, 0.1), A, 0.1)
    vertex(vertex(root, A, 0.5), BA, 0.5)
    base = Walk([AB, A], SortedVocabulary(VOCABULARY))
    base.follow(root)
    assert better(base, 0, 3, least=1.0) == [A, BA]


def test_what_never_surprised_has_no_rivals():
    root = Vertex(0, 0, (), 0)
    vertex(root, AB, 0.5)
    root.edges.append((A, 1, 0.5))
    base = Walk([AB], SortedVocabulary(VOCABULARY))
    base.follow(root)
    races = Races(base, b"ab", 0, 2, lambda depth, position: False)
    assert not races.alive
    assert races.branches() == []


def test_a_split_of_tiny_share_that_pays_later(data):
    """`·laun|ch` is 14 nats below `·launch` where it stands, and half of all mass later on."""
    lm = charwise.load(data.folder / "models" / "tinystories-3m", device="cpu")
    file = data.folder / "text" / "wikitext103_test_64k.txt"
    start = file.read_bytes().find(b"\n", 44_999) + 1
    text = file.read_bytes()[start : start + 113]
    assert text.startswith(b" The launch of HMS Dreadnought")
    # Four beams of 256 that prune at random have -385.04 +- 0.02; without `laun|ch` it is -386.6.
    for preset, within in (("default", 1.0), ("accurate", 0.1)):
        score = lm.score(text, preset=preset)
        off = abs(score.logprobs.sum() + 385.04)
        assert off < within
        assert off < max(0.1, 3 * score.error.sum())


@given(cases())
@examples(200)
def test_the_base_path_spells_the_text(case: Case):
    """Whatever the model, it is tokens of the text, as the canonical ones are."""
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    canonical, base = scouted(model, text)
    spelled = b"".join(model.vocabulary.tokens[token] or b"" for token in base)
    assert spelled == b"".join(model.vocabulary.tokens[token] or b"" for token in canonical)


@pytest.mark.parametrize("window", [600, 1000])
def test_a_better_base_path_does_not_end_at_the_window(window: int):
    """[a, b] is likelier than [ab], but has twice the tokens; the model remembers nothing."""
    vocabulary = Vocabulary.from_bytes(
        [b"a", b"b", b"ab", b"c", b"cab", b"ba", None], end_ids=[6], bos_ids=[6]
    )
    row = [0.4, 0.38, 0.005, 0.2, 0.0001, 0.0001, 0.0148]
    draw = random.Random(1)
    text = b"".join(draw.choice([b"ab", b"ab", b"c"]) for _ in range(900))
    index, asked = SortedVocabulary(vocabulary), Text(Opening((6,), b""), text)
    effort = for_tolerance(0.1)
    logs = [
        score_text(NgramLM(vocabulary, 1, {(): row}, window=size), index, asked, effort).logprobs
        for size in (None, window)
    ]
    assert logs[1].sum() == pytest.approx(logs[0].sum(), abs=1e-6)


@pytest.mark.parametrize("room", [256, 4])
def test_a_race_is_spelled_so_wherever_the_same_tokens_come_again(
    room: int, monkeypatch: pytest.MonkeyPatch
):
    """`abab`, canonically [ab, a, b]: [a, ba] at the first `aba`, and, with room, at the second."""
    monkeypatch.setattr(charwise.known_text.races, "_SPENT", 0)
    monkeypatch.setattr(charwise.known_text.races, "_SHORT", room)
    root = Vertex(0, 0, (), 0)
    base_tokens = [AB, A, B, AB, A, B, B, B, B]
    end = root
    for n, token in enumerate(base_tokens):
        end = vertex(end, token, {0: 0.01, 2: 0.1}.get(n, 0.9))
    root.edges.append((A, 1, 0.5))
    base = Walk(base_tokens, SortedVocabulary(VOCABULARY))
    base.follow(root)
    races = Races(base, b"abababab" + b"bbb", 0, 11, lambda depth, position: False)
    [race] = races.alive
    assert race.tokens == (A, BA)
    [(parent, tokens)] = races.branches()
    assert (parent, tokens) == (root, [A, BA, B])
    root.edges.remove((A, 1, 0.5))
    at = root
    for token, mass in zip(tokens, (0.001, 0.1, 0.9), strict=True):
        at = vertex(at, token, mass)
    at.edges.append((AB, at.position + 2, 0.9))
    later = races.branches()
    assert race.lost == pytest.approx(math.log(0.001 * 0.1 / (0.01 * 0.9)))
    assert race.gain == pytest.approx(race.lost + math.log(9))
    assert [tokens for _, tokens in later] == ([[A, BA, B, A, BA]] if room > 4 else [])


def test_the_best_races_go_first(monkeypatch: pytest.MonkeyPatch):
    """Of two that both may win there is room for one: [b, ab] at the end has lost less."""
    monkeypatch.setattr(charwise.known_text.races, "_SPENT", 0)
    monkeypatch.setattr(charwise.known_text.races, "_SHORT", 8)
    root = Vertex(0, 0, (), 0)
    base_tokens = [AB, B, B, B, B, BA, B, B, B, B, B, B]
    places, end = list[Vertex](), root
    for n, token in enumerate(base_tokens):
        if n in (0, 5):
            end.edges.append((A if n == 0 else B, end.position + 1, 0.5))
            places.append(end)
        end = vertex(end, token, {0: 0.01, 1: 0.1, 5: 0.01, 7: 0.1}.get(n, 0.9))
    base = Walk(base_tokens, SortedVocabulary(VOCABULARY))
    base.follow(root)
    races = Races(base, b"ab" + b"bbbb" + b"ba" + b"bbbbbb", 0, 14, lambda depth, position: False)
    asked = races.branches()
    assert [tokens for _, tokens in asked] == [[A, B, B], [B, AB, B]]
    for (at, tokens), first in zip(asked, (0.0005, 0.001), strict=True):
        at.edges.pop(next(n for n, edge in enumerate(at.edges) if edge[0] == tokens[0]))
        for token, mass in zip(tokens, (first, 0.1, 0.9), strict=True):
            at = vertex(at, token, mass)
        at.edges.append((B, at.position + 1, 0.9))
    [(parent, tokens)] = races.branches()
    assert (parent, tokens) == (places[1], [B, AB, B, B, B])


def scouted(model: Model, text: bytes) -> tuple[list[int], list[int]]:
    """The canonical tokens of a text, and the base path after a look ahead."""
    index = SortedVocabulary(model.vocabulary)
    known, canonical = KnownText.of(text, index), model.vocabulary.encode_beginning(text)
    evaluated = EvaluatedRows(model.lm.tree(model.vocabulary.bos_ids), index)
    rounds = Rounds(evaluated, 0, known, canonical, for_tolerance(0.1))
    rounds.run()
    return canonical, list(rounds.base.tokens)


@pytest.mark.parametrize("likelier", [True, False])
def test_what_proves_no_better_is_given_back(likelier: bool, monkeypatch: pytest.MonkeyPatch):
    """What is known of detours need not hold where they come one after the other."""
    row = [0.1, 0.4, 0.04, 0.4, 0.06] if not likelier else [0.3, 0.3, 0.01, 0.3, 0.09]
    model = table([b"a", b"b", b"ab", b"ba"], {(): row})
    text, promised = b"ab" * 40, [A, B] * 40
    monkeypatch.setattr(charwise.known_text.scout, "better", lambda *_: list(promised))
    monkeypatch.setattr(charwise.known_text.sections, "respellings", lambda *_: [])
    canonical, base = scouted(model, text)
    assert canonical == [AB] * 40
    assert (base == promised) is likelier
    assert likelier or base == canonical
