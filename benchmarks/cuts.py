"""Cut a text anywhere into prompt and continuation: what does its probability become?

Usage: ``python benchmarks/cuts.py [--model FOLDER] [--texts 20] [--cuts 10] [--json FILE]``

Texts are lines of standard-library modules that the embedded model never saw, each after what
precedes it in the module, which is conditioned on in its canonical tokens. For every cut:

whole   log →p(text), the reference, in rounds at θ = 1e-6, nothing lent
exact   log →p(prompt) from a state, which is then extended byte by byte to the end of the text:
        the column is the largest difference from the whole, whatever the cut
missing what the whole reports as left out, summed over its bytes; the largest of any text
K=32    the same difference with a beam: one for the prompt, extended, against another for the
        whole text. It reads from left to right and never looks ahead, so it cannot see the cut

The other columns ask for the continuation alone, and say how many nats of log p(continuation |
prompt) a method loses against the exact one, on average and at worst:

plain   the prompt's own tokens, then whatever tokens spell the continuation
1 back  one token given back and forced (masked step by step), then the same
auto    as many given back as the default rule says
"""

from __future__ import annotations

import argparse
import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import charwise
from charwise import CharLM, Effort, healing
from charwise.coverings.beam import start
from charwise.coverings.rows import EvaluatedRows
from texts import HELD_OUT

#: For the whole text: nothing is lent, and less than a millionth is left out at a time.
FINE = Effort(64, 1e-6)

BEAM = 32
GIVEN_BYTES = 240
TEXT_BYTES = 32
KINDS = ("inside a word", "at a space", "at punctuation")


class Text(NamedTuple):
    """A text, and the tokens that it follows."""

    given: list[int]
    text: bytes


class MaskedTree:
    """A `TokenTree` with the tokens that healing forbids masked out, and the rest renormalised."""

    def __init__(self, tree: Any, forced: bytes, index: charwise.SortedVocabulary) -> None:
        self._tree, self._forced, self._index = tree, forced, index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`."""
        logs = self._tree.logprobs(nodes).double()
        vocabulary = self._index.vocabulary
        for row, node in enumerate(nodes):
            left = healing.remaining(self._forced, self._tree.tokens(node), vocabulary)
            if left:
                logs[row] += self._index.mask(left).to(logs)
        return logs - logs.logsumexp(-1, keepdim=True)


class MaskedLM:
    """A `TokenLM` that generates as healing does while `forced` is being reproduced."""

    def __init__(self, lm: CharLM, forced: bytes) -> None:
        self._lm, self._forced = lm, forced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm.engine, name)

    def tree(self, prompt_ids: Sequence[int], path: Sequence[int] = ()) -> MaskedTree:
        """See `TokenLM.tree`."""
        return MaskedTree(self._lm.engine.tree(prompt_ids, path), self._forced, self._lm.index)


def texts(lm: CharLM, count: int, seed: int = 0) -> list[Text]:
    """Lines of held-out modules, each after what precedes it."""
    folder, rng = Path(sysconfig.get_path("stdlib")), random.Random(seed)
    found: list[Text] = []
    while len(found) < count:
        source = (folder / f"{rng.choice(HELD_OUT)}.py").read_bytes()
        at = source.rfind(b"\n", 0, rng.randrange(GIVEN_BYTES, len(source) - 80)) + 1
        text = source[at : at + TEXT_BYTES]
        if at >= GIVEN_BYTES and len(text.split()) > 2 and text.isascii():
            before = source[at - GIVEN_BYTES : at]
            found.append(Text([*lm.vocabulary.bos_ids, *lm.vocabulary.encode(before)], text))
    return found


def kind(text: bytes, cut: int) -> str:
    """What a cut divides.

    >>> kind(b"ab cd", 1), kind(b"ab cd", 2), kind(b"ab(cd", 3)
    ('inside a word', 'at a space', 'at punctuation')
    """
    before, after = text[cut - 1 : cut].decode(), text[cut : cut + 1].decode()
    if before.isspace() or after.isspace():
        return KINDS[1]
    word = [c.isalnum() or c == "_" for c in (before, after)]
    return KINDS[0] if all(word) else KINDS[2]


def forced_logprob(lm: CharLM, ids: Sequence[int], forced: bytes, rest: bytes) -> float:
    """log of the probability that healing goes on with `rest` after reproducing `forced`."""
    engine = MaskedLM(lm, forced) if forced else lm.engine
    found = CharLM(engine).score([*ids, forced + rest], preset=FINE)  # type: ignore[arg-type]
    return float(found.logprobs.sum())


def at_cut(lm: CharLM, text: Text, cut: int, whole: float) -> dict[str, float]:
    """All methods at one cut: differences and losses in nats."""
    prompt, rest = text.text[:cut], text.text[cut:]
    state = lm.state([*text.given, prompt], preset=FINE)
    conditional = whole - state.logprob
    for byte in rest:
        state = state + bytes([byte])
    ids = [*text.given, *lm.vocabulary.encode_beginning(prompt)]
    found = {"exact": state.logprob - whole}
    for name, rule in (("plain", "off"), ("1 back", 1), ("auto", "auto")):
        kept, forced = healing.cut(ids, lm.index, rule)  # type: ignore[arg-type]
        found[name] = conditional - forced_logprob(lm, kept, forced, rest)
    return found


def beams(lm: CharLM, text: Text, cuts: Sequence[int]) -> list[float]:
    """For each cut, a beam for the prompt that is extended, less one for the whole text."""

    def begin() -> Any:
        return start(EvaluatedRows(lm.engine.tree(text.given), lm.index), 0, k=BEAM)

    whole = begin().advance(text.text).prefix_logprob
    out = []
    for cut in cuts:
        prompt = begin().advance(text.text[:cut])
        extended = prompt.advance(text.text[cut:])
        conditional = extended.prefix_logprob - prompt.prefix_logprob
        out.append(prompt.prefix_logprob + conditional - whole)
    return out


def measure(
    lm: CharLM,
    count: int,
    cuts: int,
    *,
    seed: int = 0,
    with_beams: bool = True,
) -> list[dict[str, Any]]:
    """One row for each cut."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for text in texts(lm, count, seed):
        score = lm.score([*text.given, text.text], preset=FINE)
        whole = float(score.logprobs.sum())
        places = sorted(rng.sample(range(4, len(text.text) - 4), cuts))
        by_beam = beams(lm, text, places[:2]) if with_beams else []
        for n, cut in enumerate(places):
            row: dict[str, Any] = {"text": text.text.decode(), "cut": cut}
            row |= {"kind": kind(text.text, cut), "missing": float(score.missing.sum())}
            row |= at_cut(lm, text, cut, whole)
            if n < len(by_beam):
                row["beam"] = by_beam[n]
            rows.append(row)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By kind of cut: how many, the largest differences, mean and worst losses."""
    out: dict[str, dict[str, float]] = {}
    for name in (*KINDS, "all"):
        some = [row for row in rows if name in (row["kind"], "all")]
        if not some:
            continue
        line: dict[str, float] = {"cuts": len(some)}
        line["exact"] = max(abs(row["exact"]) for row in some)
        line["missing"] = max(row["missing"] for row in some)
        line["beam"] = max((abs(row["beam"]) for row in some if "beam" in row), default=0.0)
        for method in ("plain", "1 back", "auto"):
            losses = [row[method] for row in some]
            line[f"{method} mean"], line[f"{method} worst"] = float(np.mean(losses)), max(losses)
        out[name] = line
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="folder or name on the hub; default: the embedded model")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=10, help="of each text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    lm = charwise.load(args.model)
    rows = measure(lm, args.texts, args.cuts, seed=args.seed)
    found = summary(rows)
    title = "nats; differences: the largest; losses: mean / worst"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    names = ("cuts", "exact", "missing", f"K={BEAM}", "plain", "1 back", "auto")
    for column in ("cut", *names):
        table.add_column(column, justify="left" if column == "cut" else "right")
    for name, line in found.items():
        losses = [
            f"{line[f'{m} mean']:.2f} / {line[f'{m} worst']:.1f}"
            for m in ("plain", "1 back", "auto")
        ]
        differences = [f"{line[key]:.1e}" for key in ("exact", "missing", "beam")]
        table.add_row(name, str(int(line["cuts"])), *differences, *losses)
    Console(width=100).print(table)
    if args.json:
        facts = {"model": args.model or "embedded", "seed": args.seed, "by_kind": found}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
