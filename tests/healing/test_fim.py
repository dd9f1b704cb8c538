"""What a request for the middle holds: templates, both cuts, and where the end may come."""

import copy
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError
from charwise.healing import HealedPrompt, fim
from charwise.healing.fim import (
    Template,
    hold_end_,
    middles,
    missing_suffix,
)
from charwise.tokens.sentinels import SPELLINGS, Spelling
from conftest import LANGUAGES
from models import Case, cases, examples
from tiny import tokenizer_with

CODE = '''def area(radius):
    """The area of a circle: naïve, but in range."""
    return 3.14159 * radius ** 2  # π·r²


class Node:
\tdef __init__(self, value):
\t\tself.children = [value]
'''
#: Of the same sense as the declaration's first article, in a script that its other texts lack.
GREEK = "Ὅλοι οἱ ἄνθρωποι γεννιοῦνται ἐλεύθεροι — ἴσοι, μὲ λόγο καὶ συνείδηση. «Ἀδέλφια» 🙂\n"


@pytest.mark.parametrize("special", [True, False], ids=["special", "added"])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
def test_every_template_is_found_and_laid_out(spelling: Spelling, special: bool) -> None:
    """A sentinel's name in either text is text."""
    tokenizer = tokenizer_with((*spelling.names, *spelling.ends), special)
    own = tokenizer.convert_tokens_to_ids
    vocabulary = Vocabulary.from_transformers(tokenizer)
    index, template = SortedVocabulary(vocabulary), Template.of(vocabulary)
    p, s, m = (name and own(name) for name in spelling.sentinels)
    assert template == Template(p, s, m, spelling.family, spelling.suffix_first)
    assert set(map(own, spelling.ends)) <= set(vocabulary.end_ids)
    name = "".join(spelling.in_text)
    sides = f"print('{name}') # def are", f"{name}ius):"

    def sentinels(order: Any) -> list[int]:
        kept = fim.request(*sides, template, index, order=order).kept
        return [id for id in kept if vocabulary.tokens[id] is None][len(vocabulary.bos_ids) :]

    if spelling.suffix_first or m is None:
        assert sentinels(None) == [s, p, *([] if m is None else [m])]
        with pytest.raises(SettingError, match="suffix first"):
            sentinels("psm")
    else:
        assert sentinels(None) == sentinels("spm") == [p, s, m]
        assert fim.request(*sides, template, index).kept[-1] == m
        spm = fim.request(*sides, template, index, order="spm")
        assert spm.kept[spm.opening - 1] == m


def both_sides(
    healed: HealedPrompt, template: Template, vocabulary: Vocabulary
) -> tuple[bytes, bytes]:
    """Prefix and suffix as a request holds them."""
    parts: dict[int, list[int]] = {}
    at = -1
    for id in healed.kept[len(vocabulary.bos_ids) :]:
        if id in (template.prefix, template.suffix, template.middle):
            at = id
            parts[at] = []
        else:
            parts[at].append(id)
    in_prefix = parts.get(template.middle or -1) or parts[template.prefix]
    prefix = vocabulary.decode(in_prefix) + healed.forced
    suffix = healed.ending + vocabulary.decode(parts[template.suffix])
    return prefix.removeprefix(vocabulary.implied_prefix), suffix


@pytest.mark.parametrize("name", ["embedded", "gpt2", "llama2", "qwen2"])
def test_both_sides_come_back_for_any_cut(name: str, request: pytest.FixtureRequest) -> None:
    """At any byte, once as the prefix's end, and once as the suffix's start; by any rule."""
    spelling = SPELLINGS[3] if name == "llama2" else SPELLINGS[0]
    names = [*spelling.names, *spelling.ends]
    texts = [CODE.encode(), bytes(range(256)), b"", b" "]
    if name == "embedded":
        tokenizer = tokenizer_with(names)
    else:
        data = request.getfixturevalue("data")
        tokenizer = copy.deepcopy(data.tokenizer(name))
        tokenizer.add_special_tokens({"additional_special_tokens": names})
        texts = [*(data.text(one).encode()[400:520] for one in LANGUAGES), GREEK.encode()]
    vocabulary = Vocabulary.from_transformers(tokenizer)
    template, index = Template.of(vocabulary), SortedVocabulary(vocabulary)
    rng = random.Random(7)
    for text in texts:
        size = len(text)
        pairs = [(at, min(size, at + rng.randint(0, 20))) for at in range(size + 1)]
        for first, last in {*pairs, *((size - b, size - a) for a, b in pairs)}:
            prefix, suffix = text[:first], text[last:]
            options: Any = {
                "order": rng.choice(("psm", "spm")),
                "left": rng.choice(["auto", "auto", "word", "off", 1, 50]),
                "right": rng.choice(("auto", "auto", "off")),
            }
            healed = fim.request(prefix, suffix, template, index, **options)
            assert both_sides(healed, template, vocabulary) == (prefix, suffix)
            assert healed.before == prefix[-3:]


def naive_reach(text: bytes, tokens: list[bytes]) -> int:
    """The rule, word for word."""
    reached = (
        at
        for at in range(1, len(text) + 1)
        if any(token.endswith(text[:at]) and len(token) > at for token in tokens)
    )
    return max(reached, default=0)


@given(cases(), st.lists(st.integers(0, 40), max_size=6))
@examples(300)
def test_a_suffix_gives_up_the_tokens_that_one_from_before_could_reach(
    case: Case, numbers: list[int]
) -> None:
    index = case.model.index
    vocabulary = index.vocabulary
    ids = [int(index.ids[number % len(index.ids)]) for number in numbers]
    text = vocabulary.decode(ids)
    reach = naive_reach(text, index.sorted)
    ending, after = fim._cut_suffix(ids, index)
    assert ending + vocabulary.decode(after) == text
    cut = ids[: len(ids) - len(after)]
    assert ids[len(cut) :] == after
    if reach:
        assert len(vocabulary.decode(cut[:-1])) < reach <= len(ending)
    else:
        assert not cut


@given(st.binary(max_size=6), st.binary(max_size=4), st.integers(0, 4))
@examples(200)
def test_the_missing_suffix_completes_the_ending(new: bytes, ending: bytes, shared: int) -> None:
    new += ending[:shared]
    rest = missing_suffix(new, ending)
    assert (new + rest).endswith(ending)
    assert (rest == b"") == new.endswith(ending)


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        ([0], [0.2, 0.1, 0.1, 0.6, 0.0, 0.0]),
        ([0, 1], [0.2, 0.1, 0.6, 0.1, 0.0, 0.0]),
        ([0, 3], [0.2, 0.1, 0.1, 0.1, 0.3, 0.2]),
    ],
)
def test_what_is_missing_gets_the_probability_of_the_end(
    generated: list[int], expected: list[float]
) -> None:
    tokens = [b"y", b"e", b"x", b"ex", None, None]
    index = SortedVocabulary(Vocabulary.from_bytes(tokens, end_ids=[4, 5]))
    row = torch.tensor([0.2, 0.1, 0.1, 0.1, 0.3, 0.2]).log()
    hold_end_(row, b"", b"ex", generated, index)
    assert torch.allclose(row.exp(), torch.tensor(expected))


def test_places_where_a_middle_may_end() -> None:
    assert middles(b"aba", b"ba", ended=True) == [b"a", b"aba"]
    assert middles(b"aba", b"bac", ended=True) == [b"a", b"aba"]
    assert middles(b"aaaa", b"aa", ended=False) == [b"aa", b"a", b"", b"aaaa"]
    assert middles(b"abc", b"", ended=False) == [b"abc"]
    assert len(middles(b"x" * 100, b"x", ended=False)) == 17
    assert middles(b"end(item)\n    return", b"d", ended=True)[-1] == b"en"


def template_over(tokens: list[bytes | None], implied: bytes = b"") -> tuple[Any, Any]:
    """A template whose sentinels have the ids after these tokens, and its index."""
    ids = range(len(tokens), len(tokens) + 3)
    special = dict.fromkeys(ids, "")
    vocabulary = Vocabulary([*tokens, *[None] * 3], special=special, implied_prefix=implied)
    return Template(*ids), SortedVocabulary(vocabulary)


@pytest.mark.parametrize(
    ("prefix", "suffix", "most", "kept_prefix", "kept_suffix"),
    [
        ("abcde", "fghij", 9, "cde", "fgh"),
        ("a", "fghij", 7, "a", "fgh"),
        ("abcde", "f", 7, "cde", "f"),
        ("abcde", "f", 9, "abcde", "f"),
        ("aa\na\naa", "aaa\naaaa", 13, "a\naa", "aaa\n"),
        ("a aaa aa a", "aaa aaaaa", 13, " aa a", "aaa"),
        ("é" * 5, "é" * 5, 13, "é" * 2, "é" * 2),
    ],
)
def test_far_ends_are_cut_at_a_line_else_at_a_word_else_at_a_character(
    prefix: str, suffix: str, most: int, kept_prefix: str, kept_suffix: str
) -> None:
    template, index = template_over([bytes([byte]) for byte in range(256)])
    healed = fim.request(prefix, suffix, template, index, most=most)
    before, after = prefix.encode()[healed.prefix_cut :], suffix.encode()
    after = after[: len(after) - healed.suffix_cut]
    assert (before.decode(), after.decode()) == (kept_prefix, kept_suffix)
    assert healed.kept == [256, *before, 257, *after, 258]


def test_an_implied_space_is_no_part_of_what_is_left_out() -> None:
    template, index = template_over([b"a", b"b", b" "], b" ")
    for most, left_out in ((9, 0), (8, 0), (7, 1), (6, 2)):
        healed = fim.request("abab", "a", template, index, most=most)
        assert (healed.prefix_cut, healed.suffix_cut) == (left_out, 0)
