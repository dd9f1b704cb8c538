"""Prompts in which a client writes control tokens out: templates, repositories and edits."""

import dataclasses
import re
import time
from functools import cache
from typing import Any

import pytest

from charwise import SortedVocabulary, Vocabulary
from charwise.healing.continuation import Continuation
from charwise.healing.fim import Template, request
from charwise.healing.forced import HealedPrompt, cut
from charwise.healing.prompt import edit_format, heal_prompt, parse_template
from charwise.tokens.sentinels import SPELLINGS, Spelling, spelling_of
from tiny import tokenizer_with

FAMILIES = pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
REPOSITORIES = pytest.mark.parametrize(
    "spelling", [one for one in SPELLINGS if one.repository], ids=lambda one: one.family
)
PREFIX, SUFFIX = "def f(items):\n    for i in rang", "e(3):\n        pass\n"


@cache
def tokenizer_of(spelling: Spelling) -> Any:
    return tokenizer_with(tuple(dict.fromkeys(spelling.control)), False)


@cache
def index_of(spelling: Spelling) -> SortedVocabulary:
    return SortedVocabulary(Vocabulary.from_transformers(tokenizer_of(spelling)))


def ids_of(text: str | bytes, index: SortedVocabulary) -> list[int]:
    """The ids of a prompt that is not cut; bytes are a text without control tokens."""
    return heal_prompt(text, index, "off").kept


def text_of(spelling: Spelling, order: str) -> str:
    """The template as clients send it."""
    before, between, last = spelling.in_text
    if order == "suffix first" or spelling.middle is None:
        return f"{between.lstrip()}{SUFFIX}{before}{PREFIX}{last}"
    if order == "spm":
        space = " " if before.endswith(" ") else ""
        return f"{before.rstrip()}{between}{SUFFIX}{last}{space}{PREFIX}"
    return f"{before}{PREFIX}{between}{SUFFIX}{last}"


@FAMILIES
def test_a_template_is_healed_inside(spelling: Spelling) -> None:
    index = index_of(spelling)
    vocabulary = index.vocabulary
    template, names = Template.of(vocabulary), vocabulary.special
    for order, first in (("psm", False), ("spm", False), ("suffix first", True)):
        one = dataclasses.replace(template, suffix_first=first)
        asked: Any = {"right": "off", "order": "spm" if order == "spm" else None}
        expected = request(PREFIX, SUFFIX, one, index, **asked)
        text = text_of(spelling, order)
        for start in ("", "<s>", "<bos>", "<｜begin▁of▁sentence｜>"):
            healed = heal_prompt(start + text, index)
            assert healed.forced == expected.forced
            if order == "spm":  # a space of the middle's sentinel may be the implied one
                special = [[id for id in one.kept if id in names] for one in (healed, expected)]
                assert special[0] == special[1]
            else:
                assert healed.kept == expected.kept
            assert healed.removed_tokens == len(ids_of(text, index)) - len(healed.kept)
        # One with a sentinel too many may be about sentinels, and stays as it is.
        doubled = text.replace("for", spelling.in_text[0])
        assert ids_of(doubled, index) == ids_of(doubled.encode(), index)


def test_ids_of_a_whole_template_are_healed_inside() -> None:
    index = index_of(SPELLINGS[0])
    p, s, m = (tokenizer_of(SPELLINGS[0]).convert_tokens_to_ids(n) for n in SPELLINGS[0].names)
    text = index.vocabulary.encode("for i in rang")
    for ids in (
        [p, *text, s, *text],  # no middle
        [p, *text, m],  # no suffix
        [p, *text, s, *text, p, *text],
        [p, s, *text, m, *text],  # SPM: the prompt's own end
    ):
        assert heal_prompt(ids, index)[:2] == cut(ids, index)
    whole = [0, *text, p, *text, s, *text, m]  # something else comes first
    healed = heal_prompt(whole, index)
    assert (healed.forced, healed.before) == (b" rang", b"ang")
    assert healed.kept[: 2 + len(text)] == [0, *text, p]
    first = heal_prompt([s, *text, p, *text, m], index)  # suffix first
    assert (first.forced, first.kept[-1]) == (b" rang", m)
    empty = heal_prompt([p, s, m], index)
    assert (empty.kept, empty.forced) == ([p, s, m], b"")


# --- repositories ------------------------------------------------------------------------------


@FAMILIES
def test_a_completion_ends_where_another_file_begins(spelling: Spelling) -> None:
    vocabulary = index_of(spelling).vocabulary
    for name in spelling.ends:
        new = Continuation(vocabulary, HealedPrompt([], b"ra", 1))
        end = tokenizer_of(spelling).convert_tokens_to_ids(name)
        new.add([*vocabulary.encode("range"), end, *vocabulary.encode("other.py")])
        assert (new.take(), new.closed, new.ended, new.stopped) == ("nge", True, True, None)


@REPOSITORIES
def test_a_repository_is_healed_inside(spelling: Spelling) -> None:
    index = index_of(spelling)
    vocabulary, id_of = index.vocabulary, tokenizer_of(spelling).convert_tokens_to_ids
    start = len(vocabulary.bos_ids)
    for name, file in zip(spelling.repository, spelling.files, strict=False):
        files = f"{name}repo\n{file}a.py\nimport os\n{file}b.py\n"
        parts = [id_of(name), "repo\n", id_of(file), "a.py\nimport os\n", id_of(file), "b.py\n"]
        ids = vocabulary.encode_prompt([*vocabulary.bos_ids, *parts])
        for order in ("psm", "spm"):
            alone = heal_prompt(text_of(spelling, order), index)
            healed = heal_prompt(files + text_of(spelling, order), index)
            assert healed.forced == alone.forced == b" rang"
            assert healed.kept == [*ids, *alone.kept[start:]]


@REPOSITORIES
def test_forms_of_repositories(spelling: Spelling) -> None:
    """As editors write them: without the repository, without line ends, a path first, no middle."""
    index, id_of = index_of(spelling), tokenizer_of(spelling).convert_tokens_to_ids
    vocabulary = index.vocabulary
    name, file = spelling.repository[0], spelling.files[0]
    before, between, last = spelling.names
    template = f"{before}a{between}b{last}"
    ids = [id_of(before), "a", id_of(between), "b", id_of(last)]
    sep = id_of(file)
    quoted = f'x.py\nprint("{file}", {file} `{file}`)'
    forms: list[tuple[str, list[Any]]] = [
        (f"{file}x.py\n{template}", [sep, "x.py\n", *ids]),
        (f"{file}{template}", [sep, *ids]),
        (f"{file}def f():\n  pass{file}{template}", [sep, "def f():\n  pass", sep, *ids]),
        (f"src/x.py\nx = 1{file}y.py\n{template}", ["src/x.py\nx = 1", sep, "y.py\n", *ids]),
        (f"{name}r{file}x.py\ny", [id_of(name), "r", sep, "x.py\ny"]),
        (f"{file}{quoted}{file}y.py\n{template}", [sep, quoted, sep, "y.py\n", *ids]),
    ]
    for text, parts in forms:
        ids = vocabulary.encode_prompt([*vocabulary.bos_ids, *parts])
        assert ids_of(text, index) == ids
    for text in (
        f"see {file}x.py\n{template}",  # something else comes first
        f"{file}x.py\n{template}c",  # something follows
        f"{file}x.py\ny",  # no template, no repository
        f"{name}r\n",  # no file
        f"'{file}'{template}",
        f"# {name}r\n{file}x.py\n",
    ):
        assert ids_of(text, index) == ids_of(text.encode(), index)


@REPOSITORIES
def test_names_of_control_tokens_in_both_sides_are_text(spelling: Spelling) -> None:
    index = index_of(spelling)
    vocabulary = index.vocabulary
    before, between, last = spelling.names
    for name in (*spelling.files, *spelling.repository, *spelling.padding):
        text = f"{spelling.files[0]}x.py\n{before}{name}a {name}{between}{name}b{last}"
        sides = parse_template(text, spelling)
        assert sides is not None
        assert (sides.prefix, sides.suffix) == (f"{name}a {name}", f"{name}b")
        ids = [id for id in ids_of(text, index) if id in vocabulary.special]
        special = [vocabulary.special[id] for id in ids]
        assert special[len(vocabulary.bos_ids) :] == [spelling.files[0], before, between, last]


def test_a_model_without_such_files_reads_none() -> None:
    """Of a family that has none, and of a tokenizer that lacks the tokens."""
    bare = SortedVocabulary(Vocabulary.from_transformers(tokenizer_with(SPELLINGS[1].names)))
    assert spelling_of(set(bare.vocabulary.special.values())) == SPELLINGS[1]
    text = "<|file_sep|>x.py\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    assert ids_of(text, bare) == ids_of(text.encode(), bare)
    for spelling in SPELLINGS:
        if not spelling.files:
            assert parse_template("<file_sep>x.py\n" + text_of(spelling, "psm"), spelling) is None


# --- prompts for an edit -----------------------------------------------------------------------

ZETA = (
    "<[fim-suffix]>\nafter\n<[fim-prefix]><filename>a.py\nx = 1\n\n<filename>edit_history\n"
    "--- a/b.py\n+++ b/b.py\n-old\n+new\n\n<filename>b.py\nbefore\n"
)
#: From the models' cards: family → a prompt.
EDITS = {
    "Zeta 2": f"{ZETA}<<<<<<< CURRENT\nimport nu<|user_cursor|>\n=======\n<[fim-middle]>",
    "Zeta 2.1": f"{ZETA}<|marker_1|>\nimport nu<|user_cursor|>\n<|marker_2|>\n<[fim-middle]>",
    "Sweep": "<|file_sep|>a.py\nx = 1\n<|file_sep|>b.py.diff\noriginal:\nold\nupdated:\nnew\n"
    "<|file_sep|>original/b.py\nimport\n<|file_sep|>current/b.py\nimport nu\n"
    "<|file_sep|>updated/b.py\n",
}


@pytest.mark.parametrize("family", EDITS)
def test_a_prompt_for_an_edit_is_read_as_it_is(family: str) -> None:
    """Its control tokens are ids, and nothing before the last one is healed."""
    text = EDITS[family]
    own = "<|file_sep|>" if family == "Sweep" else "<[fim-suffix]>"
    spelling = next(one for one in SPELLINGS if own in one.control)
    index = index_of(spelling)
    encode, id_of = index.vocabulary.encode, tokenizer_of(spelling).convert_tokens_to_ids
    healed = heal_prompt(text, index)
    ids, marks = [], [name for name in spelling.control if name in text]
    for part in re.split("(" + "|".join(map(re.escape, marks)) + ")", text):
        ids += [id_of(part)] if part in marks else encode(part)
    assert [*healed.kept, *encode(healed.forced)] == [*index.vocabulary.bos_ids, *ids]
    assert text.endswith(healed.forced.decode())
    assert heal_prompt("<s>" + text, index) == healed
    other = index_of(SPELLINGS[0])
    assert heal_prompt(text, other) == heal_prompt(text.encode(), other)


@pytest.mark.parametrize("text", [*EDITS.values(), "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"])
def test_a_long_text_of_many_marks_is_read_in_one_pass(text: str) -> None:
    """Cut before its last mark and repeated, it is a prompt that ends in nothing."""
    long = (text[:-20] * (2**21 // len(text)))[: 2**21]
    started = time.process_time()
    for spelling in SPELLINGS:
        parse_template(long, spelling)
    edit_format(long)
    assert time.process_time() - started < 2
