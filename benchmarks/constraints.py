"""Constraints: their cost, whether outputs are valid, and what conditioning changes.

    python benchmarks/constraints.py [--schemas 100] [--particles 200] [--only NAME …]
        [--peer PYTHON] [--json FILE] [--plot FILE]

*Local and global*: a field whose likeliest first character leads into what is unlikely. *Sampling*:
particles of open sets. *Peer*: the same expression, and the same model, in genlm-control
(`peer_genlm_control.py`). *Cost*: what a constraint takes beside the model, for each byte of texts
that satisfy it, with the vocabulary of 128k tokens. *Validity*: JSON drawn under random
schemas by the embedded model, and by a model that gives every token of a real vocabulary the same
probability; what ended is parsed and validated by `jsonschema`.

Tokenizers are found through CHARWISE_DATA; those that are missing are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import charwise
import peer_genlm_control
import schemas
import texts
from charwise import CharLM, GenerationOptions, SortedVocabulary, State, Vocabulary, constraints
from charwise.constraints import Constraint
from charwise.cursor.completion import Weighted
from charwise.cursor.particles import sample
from charwise.cursor.token_particles import TokenParticles
from charwise.engines.ngram import NgramLM, NgramTree
from charwise.engines.transformers.lm import TransformersLM

PROSE = (
    "the model is never asked how probable the rest is that it is led into so a first character is "
    "drawn as often as the model likes it even where nearly all that it would go on to is ruled out"
)

RECORD = {"name": "surprisal of words", "tags": ["reading", "tokens"], "n": 120, "done": True}

#: What costs are measured on: a constraint, and a text that satisfies it.
COSTS: dict[str, tuple[Callable[[], Constraint], str]] = {
    "regex: (yes|no)\\.": (lambda: constraints.regex(r"(yes|no)\."), "yes."),
    "regex: dates": (
        lambda: constraints.regex(r"([0-9]{4}-[01][0-9]-[0-3][0-9]\n)+"),
        "2026-11-22\n" * 20,
    ),
    "regex: words": (lambda: constraints.regex(r"[a-z]+( [a-z]+)*"), PROSE),
    "JSON schema: an object": (
        lambda: constraints.json_schema(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "n": {"type": "integer"},
                    "done": {"type": "boolean"},
                },
                "required": ["name", "tags", "n", "done"],
                "additionalProperties": False,
            }
        ),
        json.dumps(RECORD),
    ),
    "JSON schema: any JSON": (lambda: constraints.json_schema(True), json.dumps([RECORD] * 5)),
}

#: What is measured, unless some of it is asked for.
NAMES = ("both", "sampling", "cost", "validity")

#: Open sets, and the prompts after which they are sampled.
OPEN: dict[str, tuple[str, Callable[[], Constraint]]] = {
    "numbers": ("x = ", lambda: constraints.regex(r"[0-9]{1,2}[.][0-9]\n")),
    "dates": ('today = "', lambda: constraints.regex(r'[0-9]{4}-[01][0-9]-[0-3][0-9]"')),
    "calls": ("for i in ", lambda: constraints.regex(r"[a-z_]+\([a-z0-9, ]{0,20}\):\n")),
}

#: What is sampled here and by the peer: no member begins another.
PEER = ("x = ", r"(None|0|1|2|10|-1)\n")

#: What costs are measured after.
PROMPT = "Answer: "

#: A prompt, and what may follow: the likeliest first characters lead into what is unlikely.
BOTH_WAYS = {
    'status = {"color": "': ["red", "self-luminous", "blue", "green"],
    "for i in ": ["range(zebra)", "enumerate(items)", "xrange(1)"],
}


def tokenizer(name: str) -> Vocabulary | None:
    """The vocabulary of one of the tokenizers of CHARWISE_DATA, if it is there."""
    from transformers import AutoTokenizer

    folder = texts.data_folder() / "tokenizers" / name
    if not folder.is_dir():
        return None
    return Vocabulary.from_transformers(AutoTokenizer.from_pretrained(folder))


def costs(index: SortedVocabulary, repeat: int) -> list[dict[str, Any]]:
    """Processor time that constraints take beside the model, for each byte of a text.

    *a mask a token*: all masks along the text, by themselves. *agrees*, *differs*, *far*: what
    completing the text takes over completing it without a constraint, where the model would write
    that text anyway, and where at every token another one, or twenty others, are likelier. *first
    token*: the first one, after a prompt that ends in a space, over the same without a constraint.
    *made in*: what is done once for a constraint and a vocabulary.
    """
    torch.set_num_threads(1)  # others would be counted while they wait
    return [_cost(index, name, make(), text, repeat) for name, (make, text) in COSTS.items()]


def _cost(
    index: SortedVocabulary, name: str, constraint: Constraint, text: str, repeat: int
) -> dict[str, Any]:
    vocabulary, size = index.vocabulary, len(text.encode())
    ids = vocabulary.encode(PROMPT + text)
    tokens = [vocabulary.tokens[id] or b"" for id in vocabulary.encode(text)]

    def masks() -> None:
        here = constraint.over(index)
        for token in tokens:
            assert here.mask().any()
            here = here.after(token)

    def completing(others: int, most: int, constraint: Constraint | None) -> Callable[[], None]:
        state = CharLM(knows(vocabulary, ids, others)).state(PROMPT)

        def run() -> None:
            found = state.complete(constraint=constraint, max_new_bytes=most)[0]
            assert text.startswith(found.text)
            assert len(found.raw) in (most, size)

        return run

    def beside(others: int, most: int) -> float:
        return longer(completing(others, most, constraint), completing(0, most, None), repeat)

    started = time.process_time()
    COSTS[name][0]().over(index)
    made = time.process_time() - started
    return {
        "constraint": name,
        "bytes": size,
        "tokens": len(ids),
        "a mask a token": (seconds(masks, repeat) - seconds(lambda: constraint.over(index), repeat))
        / size
        * 1e6,
        **{
            what: beside(others, size) / size * 1e6
            for what, others in (("agrees", 0), ("differs", 1), ("far", 20))
        },
        "first token, ms": beside(0, 1) * 1e3,
        "made in, ms": made * 1e3,
    }


def ruled_out(lm: CharLM, costs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many tokens were likelier than the one drawn, at the steps of greedy completions.

    *µs a byte*: the costs of *agrees*, *differs* and *far*, in these shares; for random schemas
    those of the object.
    """
    of = {row["constraint"]: row for row in costs}
    of["random JSON schemas"] = of["JSON schema: an object"]
    cases: dict[str, list[tuple[str, Constraint]]] = {
        "random JSON schemas": [
            ("value =", constraints.json_schema(schema)) for schema in schemas.schemas(100)
        ]
    }
    for name in ("regex: dates", "regex: words", "JSON schema: any JSON"):
        cases[name] = [(prompt, COSTS[name][0]()) for prompt in ("data =", "# The", "print(")]
    return [{"constraint": name, **_ruled_out(lm, some, of[name])} for name, some in cases.items()]


def _ruled_out(
    lm: CharLM, cases: list[tuple[str, Constraint]], cost: dict[str, Any]
) -> dict[str, Any]:
    assert isinstance(lm.engine, TransformersLM)
    vocabulary, ranks, size = lm.vocabulary, list[int](), 0
    for prompt, constraint in cases:
        drawn = lm.complete(prompt, constraint=constraint, max_new_bytes=200)[0]
        before = vocabulary.encode(prompt.encode()[: drawn.exact_from])
        ids = [*vocabulary.bos_ids, *before, *drawn.token_ids]
        logits = lm.engine.model(torch.tensor([ids])).logits[0]
        rank = (logits[:-1] > logits[:-1].gather(1, torch.tensor(ids)[1:, None])).sum(dim=1)
        ends = np.cumsum([len(vocabulary.tokens[id] or b"") for id in drawn.token_ids])
        after = ends[:-1] + drawn.exact_from >= len(prompt.encode())  # starts, of all but the first
        ranks += rank[len(ids) - len(after) - 1 :][after].tolist()
        size += len(drawn.raw)
    ruled = np.digitize(ranks, [1, 3])
    shares = {
        what: float((ruled == n).mean()) for n, what in enumerate(("agrees", "differs", "far"))
    }
    return {
        "tokens": len(ruled),
        "bytes": size,
        "none": f"{shares['agrees']:.1%}",
        "one or two": f"{shares['differs']:.1%}",
        "more": f"{shares['far']:.1%}",
        "µs a byte": sum(share * cost[what] for what, share in shares.items()),
    }


def longer(one: Callable[[], object], other: Callable[[], object], repeat: int) -> float:
    """By how much longer it takes than another, run in turn: the median of processor times."""
    one(), other()
    return statistics.median(once(one) - once(other) for _ in range(repeat))


def seconds(run: Callable[[], object], repeat: int) -> float:
    """The median of its processor times, after a run that warms up what is cached."""
    run()
    return statistics.median(once(run) for _ in range(repeat))


def once(run: Callable[[], object]) -> float:
    """Its processor time."""
    started = time.process_time()
    run()
    return time.process_time() - started


class Single(NgramLM):
    """Rows in single precision, as those of models are."""

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> NgramTree:
        tree = SingleTree(self, prompt_ids)
        tree.extend(edges)
        return tree


class SingleTree(NgramTree):
    """The tree of a `Single`."""

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        return super().logprobs(nodes).float()


def knows(vocabulary: Vocabulary, ids: list[int], others: int) -> NgramLM:
    """A model that gives most of its mass to the next token of a text, or more to some others."""
    unprinted = [*range(9), *range(14, 32)]  # and no white space
    likelier = [vocabulary.encode(chr(code))[0] for code in unprinted]

    def row(context: tuple[int, ...]) -> NDArray[np.float64]:
        at = len(context) - len(vocabulary.bos_ids)
        masses = 0.1 * vocabulary.counted / vocabulary.counted.sum()
        right = ids[at] if at < len(ids) else vocabulary.end_ids[0]
        masses[right] += 0.9 if not others else 0.72 / (others + 0.8)
        masses[likelier[:others]] += 0.9 / (others + 0.8)
        return np.asarray(masses)

    return Single(vocabulary, len(ids) + 9, row)


def uniform(vocabulary: Vocabulary) -> CharLM:
    """A model that gives all tokens the same probability."""
    counted = vocabulary.counted
    return CharLM(NgramLM(vocabulary, 1, {(): counted / counted.sum()}))


def validity(name: str, lm: CharLM, count: int) -> dict[str, Any]:
    """How many texts drawn under random schemas ended, and how many of those are valid."""
    ended = valid = 0
    for seed, schema in enumerate(schemas.schemas(count)):
        drawn = lm.complete(
            "value = ", json_schema=schema, temperature=1.0, seed=seed, max_new_bytes=600
        )[0]
        if drawn.finish not in ("constraint", "end"):
            continue
        ended += 1
        try:
            jsonschema.validate(json.loads(drawn.raw), schema)
            valid += 1
        except (ValueError, jsonschema.ValidationError) as error:
            print(f"{name}: {drawn.raw!r} under {schema}: {error}")
    return {"model": name, "schemas": count, "ended": ended, "valid": valid}


def particles(state: State, constraint: Constraint, count: int, **options: Any) -> Weighted:
    """Texts that follow a state, conditioned on a constraint by sampling, however few there are."""
    asked = GenerationOptions(constraint=constraint, particles=count, **options)
    return sample(TokenParticles(state, asked), asked.limit())


def both_ways(prompt: str, choices: list[str], count: int) -> list[dict[str, Any]]:
    """p of each choice: as step by step draws have it, and given that it is one of them."""
    state = charwise.load().state(prompt)
    drawn = state.complete(n=2000, temperature=1.0, seed=1, choices=choices)
    conditioned = state.choose(choices)
    sampled = particles(state, constraints.choices(choices), count, n=9, seed=1)
    shares = {c.text: float(w) for c, w in zip(sampled, sampled.weights, strict=True)}
    return [
        {
            "completion": text,
            "step by step": sum(one.text == text for one in drawn) / len(drawn),
            f"{count} particles": shares.get(text, 0.0),
            "given the constraint": float(p),
        }
        for text, p in zip(conditioned.texts, conditioned.probs, strict=True)
    ]


def sampling(counts: Sequence[int], seeds: int) -> list[dict[str, Any]]:
    """Particles of open sets: bytes a second, and how far single estimates of p(C) are apart."""
    rows = []
    for name, (prompt, make) in OPEN.items():
        state = charwise.load().state(prompt)
        particles(state, make(), 4, seed=0)
        for count in counts:
            found, started = [], time.process_time()
            for seed in range(seeds):
                found.append(particles(state, make(), count, n=count, seed=seed))
            passed = time.process_time() - started
            sizes = [
                count * sum(len(one.raw) * w for one, w in zip(each, each.weights, strict=True))
                for each in found
            ]
            estimates = np.exp([each.logprob for each in found])
            rows.append(
                {
                    "after": prompt,
                    "constraint": name,
                    "particles": count,
                    "seconds": passed / seeds,
                    "bytes/s": sum(sizes) / passed,
                    "p(C)": estimates.mean(),
                    "spread": estimates.std(ddof=1) / estimates.mean(),
                    "effective": statistics.mean(each.effective for each in found),
                }
            )
    return rows


def beside_peer(python: str, count: int, seeds: int) -> list[dict[str, Any]]:
    """The posterior over the members of a small set: added up, by particles, by the peer's.

    Means over the seeds of the unnormalised weights, as shares of p(C), and their standard errors.
    """
    prompt, regex = PEER
    state = charwise.load().state(prompt)
    constraint = constraints.regex(regex)
    started = time.process_time()
    exact = state.complete(regex=regex, conditioning="global", n=99)
    added = time.process_time() - started
    started = time.process_time()
    ours = [particles(state, constraint, count, n=99, seed=seed) for seed in range(seeds)]
    passed = (time.process_time() - started) / seeds
    options = ("--particles", str(count), "--seeds", str(seeds))
    folder = str(Path(charwise.__file__).parent / "models" / "embedded")
    peer = peer_genlm_control.run(python, folder, prompt, regex, *options)
    assert isinstance(exact, Weighted)
    mass = np.exp(exact.logprob)
    rows: list[dict[str, Any]] = []
    for one, weight in zip(exact, exact.weights, strict=True):
        mine = [
            np.exp(found.logprob)
            * dict(zip([c.raw for c in found], found.weights, strict=True)).get(one.raw, 0.0)
            for found in ours
        ]
        theirs = [np.exp(run["logprob"]) * run["texts"].get(one.text, 0.0) for run in peer]
        rows.append(
            {
                "completion": repr(one.text),
                "added up": f"{weight:.4f}",
                f"{count} particles": _share(mine, mass),
                "genlm-control": _share(theirs, mass),
            }
        )
    whole = [[np.exp(found.logprob) for found in ours], [np.exp(run["logprob"]) for run in peer]]
    rows.append(
        dict(zip(rows[0], ["any", "1", *(_share(one, mass) for one in whole)], strict=True))
    )
    theirs_s = statistics.mean(run["cpu_seconds"] for run in peer)
    times = [f"{value:.3g} s" for value in (added, passed, theirs_s)]
    rows.append(dict(zip(rows[0], ["processor time", *times], strict=True)))
    return rows


def _share(estimates: list[float], mass: float) -> str:
    """A mean and its standard error, as a share."""
    error = np.std(estimates, ddof=1) / np.sqrt(len(estimates))
    return f"{np.mean(estimates) / mass:.4f} ± {error / mass:.4f}"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars: local beside global."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 2.4))
    places = np.arange(len(rows))
    for shift, column in ((0.2, "step by step"), (-0.2, "given the constraint")):
        bars = axes.barh(places + shift, [row[column] for row in rows], 0.38, label=column)
        axes.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
    axes.set_yticks(places, [row["completion"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12)
    axes.set_xlabel("probability")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(v if isinstance(v, str) else f"{v:,.4g}" for v in row.values()))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--particles", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=20, help="runs whose median cost is taken")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--seeds", type=int, default=20, help="of samples that are compared")
    parser.add_argument("--peer", metavar="PYTHON", help="one that has genlm-control")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    tables: dict[str, list[dict[str, Any]]] = {}

    def add(title: str, rows: list[dict[str, Any]]) -> None:
        tables[title] = rows
        show(title, rows)

    if "both" in args.only:
        for prompt, choices in BOTH_WAYS.items():
            add(f"after {prompt!r}", both_ways(prompt, choices, args.particles))
        if args.plot:
            plot(tables[f"after {prompt!r}"], args.plot)
    if "sampling" in args.only:
        add("particles of open sets", sampling((20, 64), args.seeds))
    if args.peer:
        prompt = PEER[0]
        add(f"after {prompt!r}, {args.seeds} seeds", beside_peer(args.peer, 32, args.seeds))
    vocabulary = tokenizer("llama3") if "cost" in args.only else None
    if vocabulary is not None:
        title = f"µs a byte beside the model, {vocabulary.width:,} tokens"
        found = costs(SortedVocabulary(vocabulary), args.repeat)
        add(title, found)
        title = "likelier tokens that are ruled out, embedded model"
        add(title, ruled_out(charwise.load(), found))
    if "validity" in args.only:
        rows = [validity("embedded", charwise.load(), args.schemas)]
        for name in ("llama3", "qwen2", "llama2"):
            vocabulary = tokenizer(name)
            if vocabulary is not None:
                rows.append(validity(f"uniform, {name}", uniform(vocabulary), args.schemas))
        add("JSON drawn under random schemas", rows)
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
