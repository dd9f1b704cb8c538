"""What a request for the middle holds: templates, both cuts, and where the end may come."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError
from charwise.healing import HealedPrompt
from charwise.healing.fim import (
    Template,
    cut_suffix,
    latest_reach,
    middles,
    missing_suffix,
    request,
)
from charwise.tokens.sentinels import SPELLINGS, Spelling
from conftest import LANGUAGES, Data
from models import Case, cases, examples
from tiny import tokenizer_with

CODE = '''def area(radius):
    """The area of a circle: naïve, but in range."""
    return 3.14159 * radius ** 2  # π·r²


class Node:
\tdef __init__(self, value):
\t\tself.children = [value]
'''


@pytest.mark.parametrize("special", [True, False], ids=["special", "added"])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
def test_every_template_is_found_and_laid_out(spelling: Spelling, special: bool) -> None:
    tokenizer = tokenizer_with((*spelling.names, *spelling.ends), special)
    own = tokenizer.convert_tokens_to_ids
    vocabulary = Vocabulary.from_transformers(tokenizer)
    index = SortedVocabulary(vocabulary)
    template = Template.of(vocabulary)
    first = spelling.suffix_first
    named = Template.named(vocabulary, *spelling.sentinels, spelling.family, suffix_first=first)
    assert template == named
    assert (template.prefix, template.suffix) == (own(spelling.prefix), own(spelling.suffix))
    assert set(map(own, spelling.ends)) <= set(vocabulary.end_ids)
    healed = request("def are", "ius):", template, index)
    sentinels = [id for id in healed.kept if vocabulary.tokens[id] is None][
        len(vocabulary.bos_ids) :
    ]
    if first or template.middle is None:
        last = [] if template.middle is None else [template.middle]
        assert sentinels == [template.suffix, template.prefix, *last]
        with pytest.raises(SettingError, match="suffix first"):
            request("a", "b", template, index, order="psm")
    else:
        assert sentinels == [template.prefix, template.suffix, template.middle]
        assert healed.kept[-1] == template.middle
        spm = request("def are", "ius):", template, index, order="spm")
        assert [id for id in spm.kept if id in sentinels] == sentinels
        assert spm.kept[: spm.opening][-1] == template.middle


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
    return prefix.removeprefix(vocabulary.implied_prefix), healed.ending + vocabulary.decode(
        parts[template.suffix]
    )


def cut_anywhere(vocabulary: Vocabulary, template: Template, texts: list[bytes]) -> None:
    """At any byte, once as the prefix's end, and once as the suffix's start; by any rule."""
    index, rng = SortedVocabulary(vocabulary), random.Random(7)
    for text in texts:
        size = len(text)
        pairs = [(at, min(size, at + rng.randint(0, 20))) for at in range(size + 1)]
        for first, last in {*pairs, *((size - b, size - a) for a, b in pairs)}:
            prefix, suffix = text[:first], text[last:]
            order: Any = rng.choice(("psm", "spm"))
            left_rule: Any = rng.choice(["auto", "auto", "word", "off", 1, 50])
            right: Any = rng.choice(("auto", "auto", "off"))
            healed = request(
                prefix, suffix, template, index, order=order, left=left_rule, right=right
            )
            assert both_sides(healed, template, vocabulary) == (prefix, suffix)
            assert healed.before == prefix[-3:]


def test_both_sides_come_back_for_any_cut_of_code() -> None:
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    vocabulary = Vocabulary.from_transformers(tokenizer_with(names))
    template = Template.named(vocabulary, *names)
    cut_anywhere(vocabulary, template, [CODE.encode(), bytes(range(256)), b"", b" "])


#: Of the same sense as the declaration's first article, in a script that its other texts lack.
GREEK = "Ὅλοι οἱ ἄνθρωποι γεννιοῦνται ἐλεύθεροι — ἴσοι, μὲ λόγο καὶ συνείδηση. «Ἀδέλφια» 🙂\n"


@pytest.mark.parametrize("name", ["gpt2", "llama2", "qwen2"])
def test_both_sides_come_back_in_eight_languages(data: Data, name: str) -> None:
    tokenizer = copy.deepcopy(data.tokenizer(name))
    spelling = SPELLINGS[3] if name == "llama2" else SPELLINGS[0]
    tokenizer.add_special_tokens({"additional_special_tokens": [*spelling.names, *spelling.ends]})
    vocabulary = Vocabulary.from_transformers(tokenizer)
    texts = [data.text(language).encode()[400:520] for language in LANGUAGES]
    cut_anywhere(vocabulary, Template.of(vocabulary), [*texts, GREEK.encode()])


def naive_reach(text: bytes, tokens: list[bytes]) -> int:
    """The rule, word for word."""
    return max(
        (
            at
            for at in range(1, len(text) + 1)
            if any(token.endswith(text[:at]) and len(token) > at for token in tokens)
        ),
        default=0,
    )


@given(cases(), st.lists(st.integers(0, 40), max_size=6))
@examples(300)
def test_a_suffix_gives_up_the_tokens_that_one_from_before_could_reach(
    case: Case, numbers: list[int]
) -> None:
    index = case.model.index
    vocabulary = index.vocabulary
    ids = [int(index.ids[number % len(index.ids)]) for number in numbers]
    text = vocabulary.decode(ids)
    reach = latest_reach(text, index)
    assert reach == naive_reach(text, index.sorted)
    ending, after = cut_suffix(ids, index)
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


def test_places_where_a_middle_may_end() -> None:
    assert middles(b"aba", b"ba", ended=True) == [b"a", b"aba"]
    assert middles(b"aba", b"bac", ended=True) == [b"a", b"aba"]
    assert middles(b"aaaa", b"aa", ended=False) == [b"aa", b"a", b"", b"aaaa"]
    assert middles(b"abc", b"", ended=False) == [b"abc"]
    assert len(middles(b"x" * 100, b"x", ended=False)) == 17
    assert middles(b"end(item)\n    return", b"d", ended=True)[-1] == b"en"


def test_what_is_too_long_is_cut_at_the_far_ends() -> None:
    tokens: list[bytes | None] = [*(bytes([byte]) for byte in range(97, 107)), None, None, None]
    vocabulary = Vocabulary.from_bytes(tokens, special={10: "a", 11: "b", 12: "c"})
    index, template = SortedVocabulary(vocabulary), Template(10, 11, 12)
    healed = request("abcde", "fghij", template, index, most=9)
    assert healed.kept == [10, 2, 3, 4, 11, 5, 6, 7, 12]
    assert (healed.prefix_cut, healed.suffix_cut) == (2, 2)
    assert request("a", "fghij", template, index, most=7).kept == [10, 0, 11, 5, 6, 7, 12]
    assert request("abcde", "f", template, index, most=7).kept == [10, 2, 3, 4, 11, 5, 12]
    assert request("abcde", "f", template, index, most=9).prefix_cut == 0


@pytest.mark.parametrize(
    ("prefix", "suffix", "kept_prefix", "kept_suffix"),
    [
        ("aa\na\naa", "aaa\naaaa", "a\naa", "aaa\n"),
        ("a aaa aa a", "aaa aaaaa", " aa a", "aaa"),
        ("é" * 5, "é" * 5, "é" * 2, "é" * 2),
    ],
)
def test_the_far_ends_are_cut_at_a_line_else_at_a_word_else_at_a_character(
    prefix: str, suffix: str, kept_prefix: str, kept_suffix: str
) -> None:
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary([*tokens, None, None, None], special={256: "", 257: "", 258: ""})
    index, template = SortedVocabulary(vocabulary), Template(256, 257, 258)
    healed = request(prefix, suffix, template, index, most=13)
    before, after = prefix.encode()[healed.prefix_cut :], suffix.encode()
    after = after[: len(after) - healed.suffix_cut]
    assert (before.decode(), after.decode()) == (kept_prefix, kept_suffix)
    assert healed.kept == [256, *before, 257, *after, 258]


def test_an_implied_space_is_no_part_of_what_is_left_out() -> None:
    tokens: list[bytes | None] = [b"a", b"b", b" ", None, None, None]
    vocabulary = Vocabulary(tokens, special={3: "a", 4: "b", 5: "c"}, implied_prefix=b" ")
    index, template = SortedVocabulary(vocabulary), Template(3, 4, 5)
    for most, left_out in ((9, 0), (8, 0), (7, 1), (6, 2)):
        healed = request("abab", "a", template, index, most=most)
        assert (healed.prefix_cut, healed.suffix_cut) == (left_out, 0)
