"""The page's view of a text, as JSON: tokens, next characters, the covering, surprisal.

Bytes that are no character, or a part of one, are shown as `\\xNN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from charwise.char_lm import CharLM
from charwise.coverings.bundles import Bundle
from charwise.cursor.state import State
from charwise.healing import allowed_next, cut, prompt_ids
from charwise.tokens.utf8 import pending


def shown(raw: bytes) -> str:
    """Bytes as a page can show them.

    >>> shown("é".encode() + b"\\xc3")
    'é\\\\xc3'
    """
    return raw.decode("utf-8", "backslashreplace")


def tokens_view(lm: CharLM, text: bytes) -> dict[str, Any]:
    """The tokens of a text, how many of them healing keeps, and the forced text.

    Returns:
        `tokens` (the last ones) with `id`, `text` and whether each is `kept`, `left_out` before
        them, the `forced` text, and how many tokens are `allowed` to come first.

    >>> import charwise
    >>> view = tokens_view(charwise.load(), b"import nump")
    >>> [token["text"] for token in view["tokens"]][1:], view["forced"]
    (['import', ' n', 'ump'], ' nump')
    """
    vocabulary = lm.vocabulary
    ids = prompt_ids(text, vocabulary)
    kept, forced = cut(text, lm.index)
    first = max(0, len(ids) - 48)  # so many tokens are shown
    return {
        "tokens": [
            {
                "id": ids[n],
                "text": shown(vocabulary.tokens[ids[n]] or b""),
                "special": vocabulary.tokens[ids[n]] is None,
                "kept": n < len(kept),
            }
            for n in range(first, len(ids))
        ],
        "left_out": first,
        "given_back": len(ids) - len(kept),
        "forced": shown(forced),
        "allowed": len(allowed_next(forced, lm.index)),
        "vocabulary": len(lm.index.ids),
    }


def next_view(state: State) -> dict[str, Any]:
    """Return the most probable next characters, and the mass missing from the list.

    >>> import charwise
    >>> view = next_view(charwise.load().state("import nump"))
    >>> view["characters"][0]["text"], view["rest"] < 0.01
    ('y', True)
    """
    nxt, following = state.next_chars(0.9), state.next()
    found = dict(nxt.probs)
    if not pending(state.raw):  # characters of one byte are known without looking further
        found |= {chr(byte): float(following.probs[byte]) for byte in range(128)}
    top = sorted(found.items(), key=lambda pair: -pair[1])[:8]
    top = [(text, p) for text, p in top if p > 1e-6]
    return {
        "characters": [{"text": text, "p": p} for text, p in top],
        "end": nxt.eos,
        "rest": max(0.0, 1.0 - nxt.eos - math.fsum(p for _, p in top)),
        "error": following.error,
    }


def covering_view(state: State) -> dict[str, Any]:
    """The covering of a text as a tree of candidates: token by token, each with its share.

    Shares are of →p(text), given what the contexts shown begin with alike. A leaf is the last
    token of a member: `inside` of it is in the text, and it goes on with what is `beyond`, which
    is what to `insert` where it is valid.

    Returns:
        `root` (what all contexts begin with), `children`, `contexts` shown, and the share of the
        `rest`.

    >>> import charwise
    >>> view = covering_view(charwise.load().state("import nump"))
    >>> leaf = view["children"][0]
    >>> leaf["inside"], leaf["beyond"]
    (' nump', 'y')
    """
    shared = state.shared
    index = shared.index
    bundles = sorted((b for b in state.bundles if b.depth > 0), key=lambda b: -b.log_p)
    worth = sum(math.exp(b.log_p - state.logprob) >= 1e-5 for b in bundles)
    picked = bundles[: min(max(1, worth), 24)]  # the rest is summed
    with shared.lock:
        paths = [shared.tree.tokens(b.node) for b in picked]
        rows = [shared.tree.row(b.node).in_order[b.lo : b.hi] for b in picked]
    common = _begin_alike(paths)
    root = shared.index.vocabulary.decode(paths[0][:common]) if paths else b""
    children: list[dict[str, Any]] = []
    for bundle, path, row in zip(picked, paths, rows, strict=True):
        at, key = children, ""
        share = math.exp(bundle.log_p - state.logprob)
        for token in path[common:]:
            key += f"/{token}"
            node = next((one for one in at if one["key"] == key), None)
            if node is None:
                text = shown(index.vocabulary.tokens[token] or b"")
                node = {"key": key, "id": token, "text": text, "share": 0.0, "children": []}
                at.append(node)
            node["share"] += share
            at = node["children"]
        at += _members(state, bundle, row, key)
    _order(children)
    listed = math.fsum(math.exp(b.log_p - state.logprob) for b in picked)
    return {
        "root": shown(root),
        "root_ids": list(paths[0][:common]) if paths else [],
        "children": children,
        "contexts": len(picked),
        "rest": max(0.0, 1.0 - listed),
        "exact_from": state.exact_from,
    }


def _members(state: State, bundle: Bundle, row: Any, key: str) -> list[dict[str, Any]]:
    """The leaves after one context: its heaviest last tokens, and all others together."""
    index = state.shared.index
    order = np.argsort(-row, kind="stable")[:4]
    scale = bundle.log_weight - state.logprob
    found, listed = list[dict[str, Any]](), 0.0
    for rank in order[row[order] > 0].tolist():
        token = int(index.ids[bundle.lo + rank])
        raw = index.sorted[bundle.lo + rank]
        share = float(row[rank]) * math.exp(scale)
        beyond = raw[bundle.depth :]
        listed += share
        found.append(
            {
                "key": f"{key}/{token}",
                "id": token,
                "share": share,
                "inside": shown(raw[: bundle.depth]),
                "beyond": shown(beyond),
                "insert": _insertable(state.raw, beyond),
            }
        )
    others = bundle.hi - bundle.lo - len(found)
    if others:
        share = max(0.0, math.exp(bundle.log_p - state.logprob) - listed)
        found.append({"key": f"{key}/others", "others": others, "share": share})
    return found


def _insertable(text: bytes, beyond: bytes) -> str | None:
    """Return the text that a click may add: whole characters."""
    try:
        before = text.decode()
        return (text + beyond).decode()[len(before) :]
    except UnicodeDecodeError:
        return None


def _begin_alike(paths: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all paths begin with alike."""
    if not paths:
        return 0
    least, most = min(paths), max(paths)
    both = zip(least, most, strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(least), len(most)))


def _order(children: list[dict[str, Any]]) -> None:
    """Sort by weight at every level, sums of others last."""
    children.sort(key=lambda one: ("others" in one, -one["share"]))
    for one in children:
        _order(one.get("children", []))


def surprisal_view(lm: CharLM, text: bytes) -> dict[str, Any]:
    """The surprisal of each character, in bits: of a longer text of the last 240 alone.

    >>> import charwise
    >>> view = surprisal_view(charwise.load(), b"import numpy")
    >>> len(view["characters"]), view["characters"][-1]["bits"] < 1, view["left_out"]
    (12, True, 0)
    """
    letters = text.decode("utf-8", "surrogateescape")
    before, scored = letters[:-240], letters[-240:]
    if not scored:
        return {"characters": [], "bits": 0.0, "bits_per_byte": 0.0, "left_out": 0}
    context = before[-240:].encode("utf-8", "surrogateescape")
    raw = scored.encode("utf-8", "surrogateescape")
    score = lm.score(raw, context=context, preset="fast")
    spans = score.chars()
    return {
        "characters": [{"text": span.text, "bits": _finite(span.surprisal)} for span in spans],
        "bits": _finite(spans[-1].cumulative),
        "bits_per_byte": _finite(score.bits_per_byte),
        "left_out": len(before),
    }


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None
