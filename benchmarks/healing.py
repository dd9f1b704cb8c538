"""Prompts cut inside a token: plain, transformers' own token healing, healed and exact.

    python benchmarks/healing.py [--model smollm2] [--prompts 200]

docs/benchmarks.md says where prompts are cut, and what the columns are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import AutoTokenizer

import texts
from charwise.cursor.options import GenerationOptions
from charwise.side_by_side import METHODS
from harness import arguments, finish, lm_of, table

#: What comes after a prompt, up to a number of bytes.
Method = Callable[[bytes, int], str]

#: Between a word and a mark, or two marks, and after an underscore.
WORDS = r"(?<=\w)(?=[^\w\s])|(?<=[^\w\s])(?=\w)|(?<=_)(?=[a-z])|(?<=[^\w\s])(?=[^\w\s])"

#: In words of twelve letters or more, four letters or more from both ends.
LONG = r"(?<=\w{4})(?=\w{8})|(?<=\w{8})(?=\w{4})"


class Case(NamedTuple):
    """A prompt without its partial token, the prompt, and the text from the end of each."""

    aligned: bytes
    prompt: bytes
    token: str
    truth: str


def cases(lm: Any, text: str, places: set[int], inside: bool, count: int) -> list[Case]:
    """Prompts that end at some of the places, characters of the text; `inside` a token only."""
    data, rng, chosen = text.encode(), random.Random(0), list[Case]()
    sizes = [len(lm.vocabulary.tokens[id] or b"") for id in lm.vocabulary.encode(data)]
    ends = np.cumsum(sizes)
    offsets = np.cumsum([0, *(len(character.encode()) for character in text)])
    for at in rng.sample(sorted(places), len(places)):
        cut, start = int(offsets[at]), max(0, at - rng.randint(100, 200))
        token = int(np.searchsorted(ends, cut))  # the first that ends here or later
        begin, end = int(ends[token] - sizes[token]), int(ends[token])
        first = start + len(text[start:at]) - len(text[start:at].lstrip())
        if (inside and (end == cut or begin < offsets[first])) or len(chosen) == count:
            continue
        # A token may begin or end inside a character: the whole character is compared.
        left, right = (int(n) for n in np.searchsorted(offsets, [begin + 1, end]))
        aligned, prompt = data[offsets[first] : begin], data[offsets[first] : cut]
        truth = text[at:right] if inside else text[at : at + 3]
        chosen.append(Case(aligned, prompt, text[left - 1 : right], truth))
    return chosen


def methods(model: str) -> dict[str, Method]:
    """What is compared, by name."""
    lm = lm_of(model)
    tokenizer = AutoTokenizer.from_pretrained(texts.folder_of(model))
    generate: Any = lm.engine.model.generate

    def transformers(prompt: bytes, size: int) -> str:
        inputs = tokenizer(prompt.decode(), return_tensors="pt", return_token_type_ids=False)
        more = {"token_healing": True, "tokenizer": tokenizer, "max_new_tokens": size}
        ids = generate(**inputs, **more, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        text = str(tokenizer.decode(ids[0], skip_special_tokens=True))
        return text.removeprefix(prompt.decode()) if text.startswith(prompt.decode()) else "\0"

    def ours(run: Any, prompt: bytes, size: int) -> str:
        return str(run(lm, prompt, "auto", GenerationOptions(max_new_bytes=size))[0])

    ways: dict[str, Method] = {name: partial(ours, run) for name, run in METHODS.items()}
    return ways | {"transformers, token_healing=True": transformers}


def shares(method: Method, pairs: list[tuple[bytes, str]], sizes: Sequence[int]) -> list[float]:
    """The shares of completions whose first characters are right, and of calls that fail."""
    rows = []
    for prompt, truth in pairs:
        try:
            text, failed = method(prompt, len(truth.encode())), False
        except Exception:  # transformers' own healing raises now and then
            text, failed = "\0", True
        rows.append([*(text.startswith(truth[:size]) for size in sizes), failed])
    return [float(share) for share in np.mean(rows, axis=0)]


def domains() -> dict[str, tuple[str, set[int], bool]]:
    """A text, the places where it may be cut, and whether these must be inside a token."""
    code = b"\n\n".join(texts.modules()).decode()
    natural = {"code, between words": (code, {m.start() for m in re.finditer(WORDS, code)}, True)}
    compounds = (Path(__file__).parent / "compounds.txt").read_text("utf-8").replace("\n", " ")
    places = {m.start() - n for n, m in enumerate(re.finditer(r"\|", compounds))}
    german = compounds.replace("|", "")
    if (rights := texts.path_of("udhr_de.txt")).exists():
        places |= {len(german) + m.start() for m in re.finditer(LONG, rights.read_text("utf-8"))}
        german += rights.read_text("utf-8")
    natural["German, in compounds and long words"] = german, places, True
    anywhere = {"code": (code, set(range(300, len(code) - 16)), False)}
    for name, file in (("English", "wikitext103_test_64k.txt"), ("Chinese", "udhr_zh.txt")):
        if (path := texts.path_of(file)).exists():
            text = path.read_text("utf-8")
            into = natural if name == "Chinese" else anywhere
            into[name] = text, set(range(300, len(text) - 16)), name == "Chinese"
    return anywhere | natural


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    parser.add_argument("--prompts", type=int, default=200, help="the most for each text")
    args = parser.parse_args()
    compared, lm = methods(args.model), lm_of(args.model)
    anywhere, natural = dict[str, list[float]](), dict[str, list[float]]()
    for name, (text, places, inside) in domains().items():
        chosen = cases(lm, text, places, inside, args.prompts)
        pairs = [(case.prompt, case.truth) for case in chosen]
        sizes = [len(text)] if inside else [1, 3]
        rows = {method: shares(run, pairs, sizes) for method, run in compared.items()}
        if inside:
            pairs = [(case.aligned, case.token) for case in chosen]
            rows["aligned"] = shares(compared["plain"], pairs, sizes)
            lost = rows["aligned"][0] - rows["plain"][0]
            for row in rows.values():
                row.insert(1, (row[0] - rows["plain"][0]) / lost if lost else 1.0)
        into = natural if inside else anywhere
        into |= {f"{name} ({len(chosen)}), {method}": row for method, row in rows.items()}
    name, inside = "text (prompts), method", "Cut at natural places inside a token"
    finish(
        table("Cut at random places", [name, "next 1", "next 3", "failed"], anywhere, ".1%"),
        table(inside, [name, "token", "restored", "failed"], natural, ".1%"),
    )


if __name__ == "__main__":
    main()
