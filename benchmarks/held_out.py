"""Passages that presets are judged on, and texts that provoke; and the models that they are for.

Twenty passages for three models with three tokenizers: the embedded one, the TinyStories model of
`CHARWISE_DATA`, and the small one that `training/small.py` makes, in the folder that
`CHARWISE_SMALL_MODEL` names. Some settings of charwise were chosen with the first 400 bytes of them
in view, as docs/benchmarks.md says; none of these numbers with what follows (`scoring.py --skip
400`). A passage whose model or file is missing is left out, and said to be.
"""

from __future__ import annotations

import base64
import os
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

import charwise
from charwise.models import EMBEDDED
from charwise.token_lm import TokenLM, TokenTree
from charwise.tokens.vocabulary import Vocabulary
from texts import data_folder

#: Bytes of a passage.
SIZE = 400

MODELS = ("embedded", "stories", "small")


class Passage(NamedTuple):
    """A text, and the model that it is for."""

    model: str
    what: str
    text: bytes

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"{self.model}: {self.what}"


#: What is held out: the model, what it is, the file (or a module of the standard library), and
#: where in it the passage begins: with the first whole line from that byte on.
HELD_OUT: tuple[tuple[str, str, str, int], ...] = (
    ("embedded", "code, fractions", "fractions", 9000),
    ("embedded", "code, statistics", "statistics", 20000),
    ("embedded", "code, textwrap", "textwrap", 9000),
    ("embedded", "English", "text/wikitext103_test_64k.txt", 30000),
    ("embedded", "German", "text/udhr_de.txt", 6000),
    ("embedded", "Chinese", "text/udhr_zh.txt", 4000),
    ("embedded", "JSON", "prompts/humaneval_random_span_light.jsonl", 40000),
    ("stories", "code, heapq", "heapq", 12000),
    ("stories", "English", "text/wikitext103_test_64k.txt", 45000),
    ("stories", "German", "text/udhr_de.txt", 8000),
    ("stories", "Chinese", "text/udhr_zh.txt", 6000),
    ("stories", "JSON", "prompts/humaneval_random_span_light.jsonl", 80000),
    ("small", "code, shelve", "shelve", 4000),
    ("small", "code, mailbox", "mailbox", 40000),
    ("small", "English", "text/udhr_en.txt", 9600),
    ("small", "English, encyclopedia", "text/wikitext103_test_64k.txt", 57000),
    ("small", "German", "text/udhr_de.txt", 11000),
    ("small", "Chinese", "text/udhr_zh.txt", 8300),
    ("small", "JSON", "prompts/humaneval_random_span_light.jsonl", 120000),
)

#: What each model is provoked with: repeats of rare and of common words, long identical runs,
#: what is no language, and characters of several bytes.
PROVOCATIONS: dict[str, bytes] = {
    "foo, 8 times": b"foo " * 8,
    "foo_bar, 7 times": b"foo_bar " * 7,
    "ValueEr, 4 times": b"ValueEr" * 4,
    "the, 12 times": b"the " * 12,
    "quokka, 7 times": b"quokka " * 7,
    "return, 7 times": b"return " * 7,
    "a, 6 times": b"aaaaaa",
    "a, 80 times": b"a" * 80,
    "80 spaces": b" " * 80,
    "80 line ends": b"\n" * 80,
    "=, 80 times": b"=" * 80,
    "base64": base64.b64encode(random.Random(13).randbytes(72)),
    "Chinese, repeated": "天地玄黄，宇宙洪荒。".encode() * 3,
    "emoji": "🙂🙂🚀🙂🚀🚀🙂🇩🇪👩‍🔬🙂".encode(),
    "invalid UTF-8": random.Random(14).randbytes(64),
    "half characters": "é".encode()[:1] * 12 + "天".encode()[:2] * 12,
}

#: The same kinds of texts, which chose no number of the error estimate: runs, and what repeats.
OTHERS: dict[str, bytes] = {
    "., 120 times": b"." * 120,
    "-, 100 times": b"-" * 100,
    "50 line ends": b"\n" * 50,
    "150 spaces": b" " * 150,
    "60 tabs": b"\t" * 60,
    "#, 90 times": b"#" * 90,
    "ha, 60 times": b"ha" * 60,
    "abc, 12 times": b"abc, " * 12,
    "0, 20 times": b"0, " * 20,
    "cells, 9 times": b"<td></td>" * 9,
    "niradepa, 9 times": b"niradepa " * 9,
    "-*-, 20 times": b"-*-" * 20,
    "x = 1, 9 times": b"x = 1\n" * 9,
}

#: The logits of a model that is to be peaked are multiplied by this.
PEAK = 3.0

#: What the peaked model is called; it is the embedded one.
PEAKED = "peaked"


def small_folder() -> Path | None:
    """The folder of the model that `training/small.py` made, if there is one."""
    named = os.environ.get("CHARWISE_SMALL_MODEL")
    folder = Path(named) if named else None
    return folder if folder is not None and (folder / "config.json").exists() else None


def folder_of(model: str) -> str | None:
    """Where a model lies; None if it is missing."""
    if model in ("embedded", PEAKED):
        return str(EMBEDDED)
    if model == "stories":
        folder: Path | None = data_folder() / "models" / "tinystories-3m"
    else:
        folder = small_folder()
    return None if folder is None or not (folder / "config.json").exists() else str(folder)


def models(names: Sequence[str] = MODELS) -> dict[str, charwise.CharLM]:
    """The models that are there, by name; says which are not."""
    found = {}
    for name in names:
        folder = folder_of(name)
        if folder is None:
            where = "CHARWISE_DATA" if name == "stories" else "CHARWISE_SMALL_MODEL"
            Console(stderr=True).print(f"The model {name!r} is left out: not in {where}.")
        else:
            found[name] = charwise.load(folder, device="cpu")
    return found


def held_out(lms: dict[str, charwise.CharLM], size: int = SIZE) -> list[Passage]:
    """The passages for these models, and a story that the model of stories writes itself."""
    found = []
    for model, what, source, start in HELD_OUT:
        if model not in lms:
            continue
        path = path_of(source)
        if not path.exists():
            Console(stderr=True).print(f"{model}, {what} is left out: no {source}.")
            continue
        found.append(Passage(model, what, _lines_from(path.read_bytes(), start)[:size]))
    if "stories" in lms:
        found.append(Passage("stories", "a story of its own", story(lms["stories"], size)))
    return sorted(found, key=lambda passage: MODELS.index(passage.model))


def after(lms: dict[str, charwise.CharLM], size: int, skip: int) -> list[Passage]:
    """The passages, each from the first character after its first `skip` bytes."""
    found = []
    for passage in held_out(lms, skip + size):
        text = passage.text[skip:]
        while text and text[0] & 0xC0 == 0x80:
            text = text[1:]
        found.append(passage._replace(text=text))
    return found


def provocations(
    lms: dict[str, charwise.CharLM], texts: dict[str, bytes] = PROVOCATIONS
) -> list[Passage]:
    """The provocations, for each of these models."""
    return [Passage(model, what, text) for model in lms for what, text in texts.items()]


def provokes(passage: Passage) -> bool:
    """Whether a passage is a provocation."""
    return passage.what in PROVOCATIONS or passage.what in OTHERS


def peaked(lm: charwise.CharLM) -> charwise.CharLM:
    """The same model, less in doubt."""
    return charwise.CharLM(Peaked(lm.engine))


def story(lm: charwise.CharLM, size: int) -> bytes:
    """What the model itself writes, a token at a time, at a fixed seed."""
    engine: Any = lm.engine
    start = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(b"One day, a girl named")]
    torch.manual_seed(2026)
    out = engine.model.generate(
        torch.tensor([start]), do_sample=True, temperature=0.9, max_new_tokens=200
    )
    return lm.vocabulary.decode([*out[0].tolist()][len(lm.vocabulary.bos_ids) :])[:size]


def path_of(source: str) -> Path:
    """Where a source of `HELD_OUT` lies, whether it is there or not."""
    if "/" in source:
        return data_folder() / source
    return Path(sysconfig.get_path("stdlib")) / f"{source}.py"


def _lines_from(data: bytes, start: int) -> bytes:
    """From the first line that begins at `start` or later."""
    return data[data.find(b"\n", start - 1) + 1 :]


class Peaked:
    """A model whose logits are multiplied: the same contexts, less doubt."""

    def __init__(self, engine: TokenLM, factor: float = PEAK) -> None:
        self.engine, self.factor = engine, factor

    @property
    def vocabulary(self) -> Vocabulary:
        return self.engine.vocabulary

    @property
    def window(self) -> int | None:
        return self.engine.window

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> TokenTree:
        tree: TokenTree = _PeakedTree(self.engine.tree(prompt_ids, edges), self.factor)
        return tree

    def info(self) -> dict[str, str]:
        return self.engine.info()


class _PeakedTree:
    """A tree of the model, its log-probabilities multiplied and normalized."""

    def __init__(self, tree: TokenTree, factor: float) -> None:
        self._tree, self._factor = tree, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        return torch.log_softmax(self._tree.logprobs(nodes) * self._factor, dim=-1)
