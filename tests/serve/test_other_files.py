"""Prompts that write a repository out: its other files are what the model reads first."""

from __future__ import annotations

import numpy as np
import pytest

import charwise
import serving
from charwise import CharLM
from charwise.healing.fim import Template
from charwise.serve.cache import Cache
from charwise.serve.prompt import parse_prompt
from charwise.serve.task import Answer, Task
from charwise.tokens.sentinels import SPELLINGS
from sentinels import saved_with

QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
OTHER = "limits.py\nLIMIT = 5\n"
BEFORE, AFTER = "from limits import LIM", "\n\nprint(LIMIT)\n"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> CharLM:
    """The embedded model with Qwen's control tokens, which it was never trained with."""
    folder = tmp_path_factory.mktemp("model")
    return charwise.load(saved_with(folder, QWEN, special=False, seed=2))


def prompt_of(names: list[str], template: bool) -> str:
    before, between, last, repository, separator = names
    files = f"{repository}shop\n{separator}{OTHER}{separator}main.py\n"
    return f"{files}{before}{BEFORE}{between}{AFTER}{last}" if template else files + BEFORE


def opening_of(lm: CharLM, path: str) -> tuple[int, ...]:
    ids = {name: id for id, name in lm.vocabulary.special.items()}
    repository, separator = ids["<|repo_name|>"], ids["<|file_sep|>"]
    parts: list[str | bytes | int] = [*lm.vocabulary.bos_ids, repository, "shop\n", separator]
    parts += [OTHER, separator, *([path] if path else [])]
    return tuple(lm.vocabulary.encode_prompt(parts))


def answer(lm: CharLM, prompt: str, **more: object) -> Answer:
    task = Task(prompt, max_tokens=8, top=0, **more)  # type: ignore[arg-type]
    return serving.answer(Cache(lm), task, Template.of(lm.vocabulary))


STARCODER = [*SPELLINGS[0].names, "<repo_name>", "<file_sep>"]


@pytest.mark.parametrize("names", [QWEN, STARCODER], ids=["own", "of another family"])
def test_other_files_stand_behind_the_models_own_tokens(lm: CharLM, names: list[str]) -> None:
    sides = parse_prompt(Task(prompt_of(names, True)), lm.vocabulary)
    assert sides.opening == opening_of(lm, "main.py\n")
    assert (sides.before, sides.after) == (BEFORE.encode(), AFTER.encode())
    assert sides.between
    begun = parse_prompt(Task(prompt_of(names, False)), lm.vocabulary)
    assert begun.opening == opening_of(lm, "")
    assert (begun.before, begun.after) == (b"main.py\n" + BEFORE.encode(), b"")


def test_without_such_tokens_they_are_text() -> None:
    vocabulary = charwise.load().vocabulary
    sides = parse_prompt(Task(prompt_of(QWEN, True)), vocabulary)
    assert sides.opening == ()
    assert sides.before == b"LIMIT = 5\n" + BEFORE.encode()
    assert sides.after == AFTER.encode()


def test_what_is_exact_is_conditioned_on_them(lm: CharLM) -> None:
    [found] = answer(lm, prompt_of(QWEN, False)).candidates
    [expected] = lm.complete([*opening_of(lm, ""), "main.py\n" + BEFORE], max_new_bytes=40)
    assert expected.text.startswith(found.text)
    [middle] = answer(lm, prompt_of(QWEN, True)).candidates
    assert np.isfinite(middle.logprob)


def test_files_that_do_not_fit_lose_their_beginning(lm: CharLM) -> None:
    long = prompt_of(QWEN, True).replace(OTHER, OTHER * 2000)
    found = answer(lm, long)
    assert found.truncated
    assert found.candidates[0].finish != "window"
