"""The output of `charwise complete` under a constraint: drawn step by step, and conditioned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from charwise.cli import terminal
from charwise.cli.terminal import spelling
from charwise.errors import ConstraintError, InputError

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.constraints import Constraint
    from charwise.cursor.completion import Completion
    from charwise.cursor.options import GenerationOptions


def constraint_from(
    regex: str | None, json_schema: Path | None, grammar: Path | None, choices: Sequence[str]
) -> Constraint | None:
    """The constraint that the options ask for; None if none does.

    Raises:
        typer.BadParameter: two of them.
        ConstraintError: one that is wrong.
        InputError: a file that cannot be read.
    """
    asked: dict[str, Any] = {
        "regex": regex,
        "json_schema": json_schema and _read(json_schema),
        "grammar": grammar and _read(grammar),
        "choices": [choice.encode("utf-8", "surrogateescape") for choice in choices] or None,
    }
    given = [name.replace("_", "-") for name, value in asked.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise typer.BadParameter(f"--{' and --'.join(given)}: give one of them.")
    from charwise.constraints import constraint_of

    return constraint_of(asked)  # type: ignore[arg-type]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}.") from error


@dataclass(frozen=True)
class _Answer:
    """Completions under a constraint.

    Attributes:
        local: drawn from what is allowed at each step.
        heaviest: those of greatest probability, given the constraint.
        weights: p(completion | prompt, C) of each.
        logprob: log p(C | prompt), nats.
        effective: effective sample size; infinite where nothing was sampled.
    """

    local: list[Completion]
    heaviest: list[Completion]
    weights: list[float]
    logprob: float
    effective: float


def answer(
    lm: CharLM,
    prompt: bytes,
    options: GenerationOptions,
) -> _Answer:
    """Both ways to complete under a constraint."""
    from charwise.cursor.completion import Weighted

    state = lm.state(prompt)
    local = state.complete(options)
    # So many of the heaviest texts are listed.
    heaviest = state.complete(options, n=10, temperature=0.0, conditioning="global")
    if not isinstance(heaviest, Weighted):
        raise ConstraintError("no weights came back.")
    return _Answer(
        local, list(heaviest), heaviest.weights.tolist(), heaviest.logprob, heaviest.effective
    )


def table(answer: _Answer) -> Table:
    """A row for each text: what was drawn step by step first, then the heaviest others."""
    shares = ("step by step", "given the constraint")
    found = terminal.table("completion", *shares, right=shares)
    drawn = [one.raw for one in answer.local]
    weights = dict(zip([one.raw for one in answer.heaviest], answer.weights, strict=True))
    for raw in dict.fromkeys([*weights, *drawn]):
        times = drawn.count(raw)
        share = f"{weights[raw]:.4f}" if raw in weights else "–"
        found.add_row(
            spelling(raw), "drawn" if times == 1 else f"{times} ×" if times else "", share
        )
    return found


def sentence(answer: _Answer) -> str:
    """How probable the constraint is, and what the shares rest on."""
    rest = (
        "all of it added up"
        if math.isinf(answer.effective)
        else f"estimated, effective sample size {answer.effective:.0f}"
    )
    return f"p(constraint | prompt) = {math.exp(answer.logprob):.3g} ({rest})."


def fields(answer: _Answer) -> dict[str, Any]:
    """The answer for `--json`."""
    return {
        "local": [
            {"text": spelling(one.raw), "logprob": one.logprob, "finish": one.finish}
            for one in answer.local
        ],
        "global": [
            {
                "text": spelling(one.raw),
                "prob": weight,
                "logprob": one.logprob,
                "finish": one.finish,
            }
            for one, weight in zip(answer.heaviest, answer.weights, strict=True)
        ],
        "constraint_logprob": answer.logprob,
        "effective": answer.effective,
    }
