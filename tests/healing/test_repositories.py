"""Control tokens that end completions, and repositories that an editor writes out with them."""

from __future__ import annotations

import math
import re
import time
from functools import cache
from typing import Any

import pytest

from charwise import SortedVocabulary, Vocabulary, heal_generate, heal_infill
from charwise.healing.continuation import Continuation
from charwise.healing.forced import HealedPrompt
from charwise.healing.prompt import edit_format, heal_prompt, parse_template, with_sentinels
from charwise.tokens.sentinels import SPELLINGS, Spelling, spelling_of
from tiny import model_with, tokenizer_with

FAMILIES = pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
WITH_FILES = [one for one in SPELLINGS if one.repository]
REPOSITORIES = pytest.mark.parametrize("spelling", WITH_FILES, ids=lambda one: one.family)


@cache
def tokenizer_of(spelling: Spelling) -> Any:
    return tokenizer_with(tuple(dict.fromkeys(spelling.control)), False)


@cache
def index_of(spelling: Spelling) -> SortedVocabulary:
    return SortedVocabulary(Vocabulary.from_transformers(tokenizer_of(spelling)))


# --- where a completion ends -------------------------------------------------------------------


@FAMILIES
def test_a_completion_ends_where_another_file_begins(spelling: Spelling) -> None:
    vocabulary = index_of(spelling).vocabulary
    id_of = tokenizer_of(spelling).convert_tokens_to_ids
    for name in spelling.ends:
        new = Continuation(vocabulary, HealedPrompt([], b"ra", 1))
        new.add([*vocabulary.encode("range"), id_of(name), *vocabulary.encode("other.py")])
        assert (new.take(), new.closed, new.ended, new.stopped) == ("nge", True, True, None)


@pytest.mark.parametrize("name", ["<|file_sep|>", "<|im_end|>"])
def test_a_middle_ends_where_another_file_begins(name: str) -> None:
    """Of a model that writes this, and would write anything after it."""
    model, tokenizer = model_with(tuple(dict.fromkeys(SPELLINGS[1].control)), False)
    vocabulary = index_of(SPELLINGS[1]).vocabulary
    separator = tokenizer.convert_tokens_to_ids(name)
    lengths: list[int] = []

    def ends_soon(input_ids: Any, scores: Any) -> Any:
        lengths.append(input_ids.shape[1])
        scores = scores.clone()
        scores[:, list(vocabulary.special)] = -math.inf
        if len(lengths) > 3:
            scores[:, separator] = 1e4
        return scores

    options: Any = {"max_new_tokens": 12, "do_sample": False, "logits_processor": [ends_soon]}
    for heal, sides in ((heal_generate, ["import nump"]), (heal_infill, ["x = 1", "\n"])):
        lengths.clear()
        [text] = heal(model, tokenizer, *sides, **options)
        assert len(lengths) < 12
        assert text
        assert "|" not in text


# --- repositories that an editor writes out ----------------------------------------------------


def files_of(spelling: Spelling, name: str, second: str) -> str:
    return f"{name}repo\n{second}a.py\nimport os\n{second}b.py\n"


@REPOSITORIES
def test_a_repository_written_out_is_healed_inside(spelling: Spelling) -> None:
    index = index_of(spelling)
    vocabulary = index.vocabulary
    id_of = tokenizer_of(spelling).convert_tokens_to_ids
    before, between, last = spelling.in_text
    single = f"{before}for i in rang{between}e(3):\n{last}"
    one = heal_prompt(single, index)
    for name, second in zip(spelling.repository, spelling.files, strict=False):
        healed = heal_prompt(files_of(spelling, name, second) + single, index)
        repository, file = id_of(name), id_of(second)
        start = len(vocabulary.bos_ids)
        assert healed.forced == one.forced == b" rang"
        assert healed.kept == [
            *vocabulary.bos_ids,
            *(repository, *vocabulary.encode("repo\n")),
            *(file, *vocabulary.encode("a.py\nimport os\n")),
            *(file, *vocabulary.encode("b.py\n")),
            *one.kept[start:],
        ]
        spm = f"{before}{between}e(3):\n{last}for i in rang"
        again = heal_prompt(files_of(spelling, name, second) + spm, index)
        assert again.forced == b" rang"
        assert (
            again.kept[: len(healed.kept) - len(one.kept) + start]
            == (healed.kept[: len(healed.kept) - len(one.kept) + start])
        )


@REPOSITORIES
def test_forms_of_repositories(spelling: Spelling) -> None:
    """As editors write them: without the repository, without line ends, a path first, no middle."""
    vocabulary = index_of(spelling).vocabulary
    id_of = tokenizer_of(spelling).convert_tokens_to_ids
    name, file = spelling.repository[0], spelling.files[0]
    before, between, last = spelling.names
    template = f"{before}a{between}b{last}"
    ids = [id_of(before), "a", id_of(between), "b", id_of(last)]
    start: list[Any] = list(vocabulary.bos_ids)
    sep = id_of(file)
    forms: list[tuple[str, list[Any]]] = [
        (f"{file}x.py\n{template}", [sep, "x.py\n", *ids]),
        (f"{file}\n{template}", [sep, "\n", *ids]),
        (f"{file}{template}", [sep, *ids]),
        (f"{file}def f():\n  pass{file}{template}", [sep, "def f():\n  pass", sep, *ids]),
        (f"src/x.py\nx = 1{file}y.py\n{template}", ["src/x.py\nx = 1", sep, "y.py\n", *ids]),
        (f"{name}r{file}x.py\ny", [id_of(name), "r", sep, "x.py\ny"]),
        (
            f'{file}x.py\nprint("{file}", {file} `{file}`){file}y.py\n{template}',
            [sep, f'x.py\nprint("{file}", {file} `{file}`)', sep, "y.py\n", *ids],
        ),
    ]
    for text, parts in forms:
        assert with_sentinels(text, vocabulary) == [*start, *parts]
    for text in (
        f"see {file}x.py\n{template}",  # something else comes first
        f"{file}x.py\n{template}c",  # something follows
        f"{file}x.py\n{before}{template}",  # a sentinel twice
        f"{file}x.py\ny",  # no template, no repository
        f"{name}r\n",  # no file
        f"'{file}'{template}",
        f"# {name}r\n{file}x.py\n",
    ):
        assert with_sentinels(text, vocabulary) == text


@REPOSITORIES
def test_what_is_written_in_both_sides_is_text(spelling: Spelling) -> None:
    """Names of control tokens in the file that is edited, whose template has them outside."""
    vocabulary = index_of(spelling).vocabulary
    before, between, last = spelling.names
    for name in (*spelling.files, *spelling.repository, *spelling.padding):
        text = f"{spelling.files[0]}x.py\n{before}{name}a {name}{between}{name}b{last}"
        sides = parse_template(text, spelling)
        assert sides is not None
        assert (sides.prefix, sides.suffix) == (f"{name}a {name}", f"{name}b")
        ids = vocabulary.encode_prompt(with_sentinels(text, vocabulary))
        special = [vocabulary.special[id] for id in ids if id in vocabulary.special]
        assert special[len(vocabulary.bos_ids) :] == [spelling.files[0], before, between, last]


def test_a_model_without_such_files_reads_none() -> None:
    """Of a family that has none, and of a tokenizer that lacks the tokens."""
    names = SPELLINGS[1].names
    bare = Vocabulary.from_transformers(tokenizer_with(names))
    assert spelling_of(set(bare.special.values())) == SPELLINGS[1]
    text = "<|file_sep|>x.py\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    assert with_sentinels(text, bare) == text
    for spelling in SPELLINGS:
        if not spelling.files:
            before, between, last = spelling.in_text
            assert parse_template(f"<file_sep>x.py\n{before}a{between}b{last}", spelling) is None


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
    healed = heal_prompt(text, index)
    ids, marks = [], [name for name in spelling.control if name in text]
    for part in re.split("(" + "|".join(map(re.escape, marks)) + ")", text):
        known = tokenizer_of(spelling).convert_tokens_to_ids(part)
        ids += [known] if part in marks else index.vocabulary.encode(part)
    assert [*healed.kept, *index.vocabulary.encode(healed.forced)] == [
        *index.vocabulary.bos_ids,
        *ids,
    ]
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
