"""A token tree that many states share: the prefill, and all that was evaluated after it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from charwise.coverings.rows import EvaluatedRows
from charwise.errors import EmptyBeamError, ZeroProbabilityError

if TYPE_CHECKING:
    from charwise.model import CharLM


class Opening(NamedTuple):
    """What comes before a text: token ids, and the bytes that the tokenizer implies after them.

    >>> Opening(ids=(0,), lead=b" ").lead
    b' '
    """

    ids: tuple[int, ...]
    lead: bytes


class Session:
    """One token tree, shared by all states that grew from the same prompt.

    Attributes:
        lm: the model.
        opening: what a text is conditioned on, start token and special tokens included.
        given: the text's first canonical tokens: with `opening`, what the root is conditioned on.
        start: bytes of the text before the root: after them, all alternatives count.
        path: tokens after the root that are evaluated with it, as are the shorter tokens that each
            of them starts with: the alternatives that can be told from the text alone.
        lock: held while the tree or the evaluated rows change.

    >>> import charwise
    >>> lm = charwise.load()
    >>> opening = Opening(lm.vocabulary.bos_ids, b"")
    >>> session = Session(lm, opening, lm.vocabulary.encode("import"), 6)
    >>> node = session.evaluated.extend([(0, lm.vocabulary.encode(" os")[0])])[0]
    >>> session.length(node) - session.length(0)
    1
    >>> session.drop([node])
    """

    def __init__(
        self,
        lm: CharLM,
        opening: Opening,
        given: Sequence[int],
        start: int,
        path: Sequence[int] = (),
    ) -> None:
        self.lm = lm
        self.opening = opening
        self.given = list(given)
        self.start = start
        edges = list(enumerate(path))
        for node, token in enumerate(path):
            edges += [
                (node, prefix) for prefix in lm.index.prefixes(lm.vocabulary.tokens[token] or b"")
            ]
        tree = lm.engine.tree([*opening.ids, *self.given], edges)
        self.evaluated = EvaluatedRows(tree, lm.index, edges=edges, retain=True)
        self.lock = threading.RLock()
        self._dropped: set[int] = set()

    def length(self, node: int) -> int:
        """Tokens of a node's whole context, the opening included."""
        return len(self.opening.ids) + len(self.given) + self.evaluated.tree.depth(node)

    def drop(self, nodes: Sequence[int]) -> None:
        """Free contexts that no state refers to."""
        if nodes:
            with self.lock:
                self._dropped.update(nodes)
                tree = self.evaluated.tree
                tree.keep([node for node in range(tree.size) if node not in self._dropped])


def impossible(text: bytes, missing: float) -> ZeroProbabilityError | EmptyBeamError:
    """The error for a text that nothing evaluated can spell, though `missing` was left out.

    >>> type(impossible(b"ab", missing=0.0)).__name__, type(impossible(b"ab", 0.1)).__name__
    ('ZeroProbabilityError', 'EmptyBeamError')
    """
    if missing <= 0.0:
        return zero_probability(text)
    return EmptyBeamError(
        f"no context that was kept goes on to {text[-20:]!r} ({len(text)} bytes); up to "
        f"{missing:.2g} of the probability was left out before. Use preset='accurate', or an "
        "Effort with a smaller theta."
    )


def zero_probability(text: bytes) -> ZeroProbabilityError:
    """The error for a text that cannot be conditioned on.

    >>> str(zero_probability(b"ab"))[:42]
    "the model gives the text ending in b'ab' ("
    """
    return ZeroProbabilityError(
        f"the model gives the text ending in {text[-20:]!r} ({len(text)} bytes) probability zero, "
        "so nothing can be conditioned on it. Check the text, or whether the vocabulary can "
        "spell it; with a coarse preset, try preset='accurate'."
    )
