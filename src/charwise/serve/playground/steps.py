"""One healing, step by step: the forced bytes, the allowed tokens, the chosen one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from charwise.char_lm import CharLM
from charwise.cursor.state import State
from charwise.healing import allowed_next, cut, prompt_ids, remaining
from charwise.serve.playground.views import shown
from charwise.tokens.utf8 import decoder_after

#: A completion that is shown ends with a paragraph.
_END = b"\n\n"


class _Step(NamedTuple):
    """One token of a healed generation.

    Attributes:
        left: bytes still forced before it.
        allowed: ids of the tokens that may come, the most probable first.
        probabilities: of those, among all tokens.
        mass: of all that may come.

    The first of `allowed` is the one that comes.

    >>> _Step(b"w", [3], [0.5], 0.5).left
    b'w'
    """

    left: bytes
    allowed: list[int]
    probabilities: list[float]
    mass: float


def steps(lm: CharLM, kept: Sequence[int], forced: bytes) -> Iterator[_Step]:
    """Yield greedy generation after a cut: the likeliest allowed token, until the text ends.

    A prompt longer than the window loses its beginning.

    >>> import charwise
    >>> lm = charwise.load()
    >>> first = next(steps(lm, *cut("import nump", lm.index)))
    >>> first.left, lm.vocabulary.tokens[first.allowed[0]]
    (b' nump', b' ')
    """
    index, vocabulary, window = lm.index, lm.vocabulary, lm.engine.window
    if window is not None and len(kept) > window // 2:
        kept = [*vocabulary.bos_ids, *kept[-(window // 2) :]]
    tree = lm.engine.tree(kept)
    node, generated, left = 0, list[int](), forced
    while window is None or len(kept) + len(generated) < window:
        ids = torch.from_numpy(allowed_next(left, index).copy())
        logs = tree.logprobs([node])[0].cpu()[ids].double()
        order = torch.argsort(-logs, stable=True)
        probabilities = logs[order].exp()
        allowed = ids[order].tolist()
        yield _Step(left, allowed, probabilities.tolist(), float(probabilities.sum()))
        if allowed[0] in vocabulary.end_ids:
            return
        generated.append(allowed[0])
        left = remaining(forced, generated, vocabulary) or b""
        [[node]] = tree.extend([(node, allowed[:1])])


def _generated(lm: CharLM, kept: Sequence[int], forced: bytes, most: int = 32) -> bytes:
    """The text after a prompt that was cut, without the forced text; `most` bytes or so.

    >>> import charwise
    >>> lm = charwise.load()
    >>> _generated(lm, *cut("import nump", lm.index), 1)
    b'y'
    """
    made = b""
    for step in steps(lm, kept, forced):
        made += lm.vocabulary.tokens[step.allowed[0]] or b""
        if len(made) - len(forced) >= most:
            break
        if _END in made[len(forced) :]:
            break
    return made[len(forced) :][:most].split(_END)[0]


def completions_view(lm: CharLM, text: bytes, state: State) -> dict[str, Any]:
    """Plain, healed and exact completions of a text.

    >>> import charwise
    >>> lm = charwise.load()
    >>> view = completions_view(lm, b"import nump", lm.state("import nump"))
    >>> view["healed"][:1], view["exact"][:1]
    ('y', 'y')
    """
    exact = state.complete(max_new_bytes=32, stop=_END)
    return {
        "plain": _text(text, _generated(lm, prompt_ids(text, lm.vocabulary), b"")),
        "healed": _text(text, _generated(lm, *cut(text, lm.index))),
        "exact": exact[0].text if exact else "",
    }


def _text(before: bytes, new: bytes) -> str:
    return decoder_after(before).decode(new)


def steps_view(lm: CharLM, text: bytes) -> dict[str, Any]:
    """Return a healing, step by step.

    Returns:
        `kept` and `given_back` tokens, the `forced` text, and `steps`, each with what is `left`,
        what was `written`, how many tokens may come (`allowed`), the first `candidates`, and the
        `mass` of all that may come. The first candidate is the one that is taken.

    >>> import charwise
    >>> view = steps_view(charwise.load(), b"def sweep(self):\\n    self.sw")
    >>> view["forced"], [step["candidates"][0]["text"] for step in view["steps"]][:3]
    ('.sw', ['.', 's', 'we'])
    """
    vocabulary = lm.vocabulary
    ids = prompt_ids(text, vocabulary)
    kept, forced = cut(text, lm.index)
    written, taken, free = b"", list[dict[str, Any]](), 0
    for step in steps(lm, kept, forced):
        free += not step.left
        taken.append(
            {
                "left": shown(step.left),
                "written": shown(written),
                "allowed": len(step.allowed),
                "mass": step.mass,
                "candidates": [
                    _candidate(lm, step, id, p)
                    for id, p in zip(step.allowed[:6], step.probabilities[:6], strict=True)
                ],
            }
        )
        written += vocabulary.tokens[step.allowed[0]] or b""
        if free == 2 or len(taken) == 8:
            break
    return {
        "kept": [shown(vocabulary.tokens[id] or b"") for id in ids[: len(kept)]][-8:],
        "given_back": [shown(vocabulary.tokens[id] or b"") for id in ids[len(kept) :]],
        "forced": shown(forced),
        "steps": taken,
    }


def _candidate(lm: CharLM, step: _Step, id_: int, p: float) -> dict[str, Any]:
    raw = lm.vocabulary.tokens[id_]
    token, left = raw or b"", step.left
    return {
        "id": id_,
        "text": shown(token),
        "end": raw is None,
        "p": p,
        "share": p / step.mass if step.mass else 0.0,
        # Of the token: what the text asks for, and what goes beyond; what stays to be written.
        "inside": shown(token[: len(left)]),
        "beyond": shown(token[len(left) :]),
        "then_left": shown(left[len(token) :]),
    }
