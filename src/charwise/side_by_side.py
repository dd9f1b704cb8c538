"""One prompt, completed in three ways: plain, healed and exact.

Plain and healed draw tokens after the first tokens of a prompt, with the bytes that were cut off
forced; exact conditions on the prompt's characters. `charwise complete`, `demo` and the page of the
server show them side by side.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from charwise.char_lm import CharLM
from charwise.cursor.generation import whole_characters
from charwise.cursor.options import GenerationOptions
from charwise.healing import Rule, allowed_next, cut, remaining
from charwise.tokens.utf8 import decoder_after


def prompt_tokens(lm: CharLM, prompt: bytes, max_new_bytes: int) -> tuple[list[int], int]:
    """Return the prompt's ids as the model sees them, and how many at the start do not fit.

    At least half of the window stays for the prompt.
    """
    vocabulary, window = lm.vocabulary, lm.engine.window
    ids = vocabulary.encode(vocabulary.implied_prefix + prompt)
    dropped = 0
    if window is not None:
        room = max(window // 2, window - max_new_bytes - vocabulary.max_token_bytes)
        dropped = max(0, len(ids) - room + len(vocabulary.bos_ids))
    return [*vocabulary.bos_ids, *ids[dropped:]], dropped


class Step(NamedTuple):
    """The state of a completion before one of its tokens is drawn."""

    text: bytes  # of its tokens so far, the forced ones included
    missing: bytes  # what is missing of the forced text
    allowed: NDArray[np.int64]  # ids of the tokens that may come
    logprobs: NDArray[np.float64]  # of these, nats


def complete_by_tokens(
    lm: CharLM,
    prompt: bytes,
    rule: Rule,
    options: GenerationOptions,
    observe: Callable[[Step], object] = lambda _: None,
) -> list[str]:
    """Return completions drawn token by token after a prompt that `rule` cuts.

    The rule "off" is the plain way. Of the options, `n`, `max_new_bytes`, `temperature`, `seed` and
    `stop` count. `observe` is called before each token.
    """
    ids, _ = prompt_tokens(lm, prompt, options.max_new_bytes)
    prompt_ids, forced = cut(ids, lm.index, rule)
    tree, rng = lm.engine.tree(prompt_ids), np.random.default_rng(options.seed)
    room = None if lm.engine.window is None else lm.engine.window - len(prompt_ids)
    count = options.n if options.temperature else 1
    nodes, samples = [0] * count, [list[int]() for _ in range(count)]
    texts, live = [b""] * count, list(range(count))
    while live:
        logprobs = tree.logprobs([nodes[n] for n in live]).double().cpu().numpy()  # [live, width]
        branches = []
        for row, n in zip(logprobs, list(live), strict=True):
            missing = remaining(forced, samples[n], lm.vocabulary) or b""
            allowed = allowed_next(missing, lm.index)
            scores = row[allowed]
            observe(Step(lm.vocabulary.decode(samples[n]), missing, allowed, scores))
            if options.temperature:
                scores = scores / options.temperature + rng.gumbel(size=len(scores))
            token = int(allowed[scores.argmax()])
            samples[n].append(token)
            texts[n], more = _text(lm, samples[n], forced, options)
            if more and (room is None or len(samples[n]) < room):
                branches.append((nodes[n], [token]))
            else:
                live.remove(n)
        for n, [node] in zip(live, tree.extend(branches), strict=True):
            nodes[n] = node
    whole = [whole_characters(prompt, text[: options.max_new_bytes]) for text in texts]
    return [decoder_after(prompt).decode(text) for text in whole]


def _text(
    lm: CharLM, ids: Sequence[int], forced: bytes, options: GenerationOptions
) -> tuple[bytes, bool]:
    """The new text of drawn tokens, and whether it goes on."""
    tokens = [lm.vocabulary.tokens[id] for id in ids]
    text = b"".join(token or b"" for token in tokens)[len(forced) :]
    stops = cast(tuple[bytes, ...], options.stop)
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    if ends:
        return text[: min(ends)], False
    return text, tokens[-1] is not None and len(text) < options.max_new_bytes


#: Every method by its name, in the order in which they are shown. Plain completions come after the
#: prompt's own tokens, exact ones after its characters, however they fall into tokens.
METHODS: dict[str, Callable[[CharLM, bytes, Rule, GenerationOptions], list[str]]] = {
    "plain": lambda lm, prompt, rule, options: complete_by_tokens(lm, prompt, "off", options),
    "healed": complete_by_tokens,
    "exact": lambda lm, prompt, rule, options: [c.text for c in lm.complete(prompt, options)],
}
