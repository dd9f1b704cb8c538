"""Transformers under the mask of healing, token by token: what every host is compared with."""

from typing import Any

import torch

from charwise import SortedVocabulary
from charwise.healing import allowed_next, remaining
from charwise.healing.continuation import Bounds, Continuation
from charwise.healing.prompt import heal_prompt


@torch.inference_mode()
def greedy_text(
    model: Any, index: SortedVocabulary, prompt: Any, bounds: Bounds, steps: int, rule: Any = "auto"
) -> str:
    """The text beyond a prompt: so many steps with a scan over the whole vocabulary in each."""
    vocabulary = index.vocabulary
    healed, ids = heal_prompt(prompt, index, rule), list[int]()
    for _ in range(steps + len(healed.forced)):
        logits = model(torch.tensor([healed.kept + ids])).logits[0, -1]
        rest = healed.forced[len(vocabulary.decode(ids)) :]
        for id, token in enumerate(vocabulary.tokens if rest else ()):
            if not token or not (token.startswith(rest) or rest.startswith(token)):
                logits[id] = -torch.inf
        ids.append(int(logits.argmax()))
        if ids[-1] in vocabulary.end_ids:
            break
    new = Continuation(vocabulary, healed, bounds._replace(ends=vocabulary.end_ids))
    new.add(ids)
    return new.take()


@torch.inference_mode()
def gaps(
    model: Any, index: SortedVocabulary, kept: list[int], forced: bytes, generated: list[int]
) -> list[float]:
    """For each generated token, by how many nats the best allowed token is better."""
    logits = model(torch.tensor([[*kept, *generated]])).logits[0, len(kept) - 1 : -1].double()
    found = []
    for at, (row, token) in enumerate(zip(logits, generated, strict=True)):
        left = remaining(forced, generated[:at], index.vocabulary)
        assert left is not None, f"{generated[:at]} left the forced text {forced!r}"
        allowed = torch.from_numpy(allowed_next(left, index).copy()) if left else slice(None)
        assert not left or token in allowed, f"{token} does not go on with {left!r}"
        found.append(float(row[allowed].max() - row[token]))
    return found
