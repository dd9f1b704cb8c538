"""What a constraint adds to generation, µs for each byte of a text that satisfies it.

    python benchmarks/constraints.py [--repeat 31] [--quick]

The vocabulary is that of Llama 3, or with `--quick` of the embedded model.
*a mask a token*: all masks along the text, for an engine that masks every step. *agrees*,
*differs*, *far*: what completing the text takes over completing it without a constraint, where the
model would write that text anyway, and where at every token one other or twenty are likelier.
*made in*: once for a constraint and a vocabulary.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from transformers import AutoTokenizer

from charwise import CharLM, SortedVocabulary, Vocabulary, constraints
from charwise.constraints import Constraint
from charwise.engines.ngram import NgramLM
from harness import arguments, finish, seconds, table, tokenizer_folder

PROMPT = "Answer: "
DATES = r"([0-9]{4}-[01][0-9]-[0-3][0-9]\n)+"
PROSE = "the model is never asked how probable the rest is that it is led into"
RECORD = {"name": "surprisal of words", "tags": ["reading", "tokens"], "n": 120, "done": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "n": {"type": "integer"},
        "done": {"type": "boolean"},
    },
    "required": list(RECORD),
    "additionalProperties": False,
}

#: A constraint, and a text that satisfies it.
CASES: dict[str, tuple[Callable[[], Constraint], str]] = {
    "regex: yes or no": (lambda: constraints.regex(r"(yes|no)\."), "yes."),
    "regex: dates": (lambda: constraints.regex(DATES), "2026-11-22\n" * 20),
    "regex: words": (lambda: constraints.regex(r"[a-z]+( [a-z]+)*"), PROSE),
    "JSON schema: an object": (lambda: constraints.json_schema(SCHEMA), json.dumps(RECORD)),
    "JSON schema: any JSON": (lambda: constraints.json_schema(True), json.dumps([RECORD] * 5)),
}

COLUMNS = ("constraint", "bytes", "a mask a token", "agrees", "differs", "far", "made in, ms")


def knows(vocabulary: Vocabulary, ids: list[int], others: int) -> NgramLM:
    """A model that gives most of its mass to the next token of a text, or more to some others."""
    likelier = [vocabulary.encode(chr(code))[0] for code in (*range(9), *range(14, 32))]

    def row(context: tuple[int, ...]) -> Any:
        at = len(context) - len(vocabulary.bos_ids)
        masses = 0.1 * vocabulary.counted / vocabulary.counted.sum()
        right = ids[at] if at < len(ids) else vocabulary.end_ids[0]
        masses[right] += 0.9 if not others else 0.72 / (others + 0.8)
        masses[likelier[:others]] += 0.9 / (others + 0.8)
        return masses

    return NgramLM(vocabulary, len(ids) + 9, row)


def costs(index: SortedVocabulary, name: str, repeat: int) -> list[float]:
    make, text = CASES[name]
    making = seconds(lambda: make().over(index))
    constraint, vocabulary, size = make(), index.vocabulary, len(text)
    ids = vocabulary.encode(PROMPT + text)

    def masks() -> None:
        here = constraint.over(index)
        for id in vocabulary.encode(text):
            assert here.mask().any()
            here = here.after(vocabulary.tokens[id] or b"")

    def completing(others: int, constraint: Constraint | None) -> Callable[[], None]:
        state = CharLM(knows(vocabulary, ids, others)).state(PROMPT)

        def run() -> None:
            assert state.complete(constraint=constraint, max_new_bytes=size)[0].text == text

        return run

    def longer(one: Callable[[], Any], other: Callable[[], Any]) -> float:
        one(), other()
        return statistics.median(seconds(one) - seconds(other) for _ in range(repeat)) / size * 1e6

    row = [size, longer(masks, lambda: constraint.over(index))]
    row += [longer(completing(n, constraint), completing(0, None)) for n in (0, 1, 20)]
    return [*row, 1e3 * making]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--repeat", type=int, default=31, help="runs, whose median is taken")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder("llama3", args.quick))
    vocabulary = Vocabulary.from_transformers(tokenizer)
    index, repeat = SortedVocabulary(vocabulary), 1 if args.quick else args.repeat
    rows = {name: costs(index, name, repeat) for name in CASES}
    title = f"µs a byte beside the model, {vocabulary.width:,} tokens"
    finish(table(title, COLUMNS, rows))


if __name__ == "__main__":
    main()
