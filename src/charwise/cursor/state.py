"""What the model knows after some text, and how that changes with every byte.

A `State` is the set of bundles that cover its text (docs/coverings.md). The prompt is known text:
one prefill, then rounds over its last tokens only, because alternatives further back cancel in
what comes next. From there a state grows byte by byte: each bundle keeps the tokens that go on
with the byte, and the contexts whose last token ends there are evaluated in one batch.

States are immutable and share one `Session`: the token tree, and what has been evaluated in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.beam import Bundle
from charwise.coverings.log_sums import log, log_sum
from charwise.cursor.distributions import NextBytes, NextChars
from charwise.cursor.shared_tree import Opening, Session, impossible
from charwise.errors import SettingError
from charwise.known_text.effort import Effort
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds
from charwise.tokens.canonical import to_bytes

if TYPE_CHECKING:
    from charwise.model import CharLM

#: Canonical tokens before the cursor whose alternatives are summed over.
EXACT_TOKENS = 12

#: Longer additions to a state are taken in rounds instead of byte by byte.
_STEPPED = 4

#: Bundles lighter than this share of the text's probability are dropped, and counted, unless
#: the effort is to drop nothing (θ = 0).
_LIGHT = 1e-12


class State:
    """An immutable state: `state + "text"`, `state - n` bytes, `state.next()`.

    Attributes:
        whole: the text, after the implied leading space of tokenizers that have one.
        bundles: the contexts that cover it.
        logprob: log →p(text | what is before `exact_from`), nats.
        missing: share of the probability that was left out, added up over the bytes where it was;
            what was lent to similar contexts is not in it.

    >>> import charwise
    >>> lm = charwise.load()
    >>> state = lm.state("import nump")
    >>> (state + "y").text, (state + "yz" - 2).text == state.text
    (b'import numpy', True)
    """

    def __init__(
        self,
        session: Session,
        whole: bytes,
        bundles: tuple[Bundle, ...],
        logprob: float,
        missing: float,
        effort: Effort,
        parent: State | None = None,
    ) -> None:
        self.session = session
        self.whole = whole
        self.bundles = bundles
        self.logprob = logprob
        self.missing = missing
        self.effort = effort
        self._parent = parent

    @property
    def text(self) -> bytes:
        """All of the prompt's text and what was added since."""
        return self.whole[len(self.session.opening.lead) :]

    @property
    def exact_from(self) -> int:
        """Offset in `text`, in bytes, from which on all tokenizations are summed.

        What is before it is conditioned on in its canonical tokenization.
        """
        return max(0, self.session.start - len(self.session.opening.lead))

    @property
    def at_root(self) -> bool:
        """Whether nothing follows the root yet, so that the covering is the empty string."""
        return len(self.whole) == self.session.start

    def next(self) -> NextBytes:
        """p(byte | text) for the 256 bytes and the end of text.

        Raises:
            ZeroProbabilityError, EmptyBeamError: if nothing can follow, or nothing that was kept.

        >>> import charwise
        >>> charwise.load().state("import nump").next().top(1)[0][0]
        'y'
        """
        masses = self._next_masses()
        total = masses.sum()
        if not total > 0:
            raise impossible(self.whole, self.missing)
        return NextBytes(masses / total, self.missing)

    def next_chars(self, coverage: float = 0.99) -> NextChars:
        """p(character | text), listing characters until they hold `coverage` of the probability.

        The bytes of one character are summed out along the UTF-8 tree, the heaviest branch
        first. If the text ends inside a character, the characters that complete it are listed.
        The last hundredth of the probability may be spread over many thousands of characters.

        Raises:
            SettingError: for a coverage outside (0, 1].
        """
        from charwise.cursor.characters import next_chars

        return next_chars(self, coverage)

    def __add__(self, more: str | bytes) -> State:
        """The state after more text.

        Raises:
            ZeroProbabilityError: if the model gives the longer text probability zero.
            ContextLengthError: if the text no longer fits the window and cannot be shortened.
        """
        data = to_bytes(more)
        if len(data) > _STEPPED:
            return self.session.lm.continue_state(self, data)
        state = self
        for byte in data:
            state = state._step(byte)
        return state

    def __sub__(self, n: int) -> State:
        """The state with the last `n` bytes deleted; nothing known is evaluated again.

        Raises:
            SettingError: if there are fewer bytes than that.
        """
        if not 0 <= n <= len(self.text):
            raise SettingError(f"cannot delete {n} bytes of a text of {len(self.text)}.")
        state, left = self, n
        while left and state._parent is not None:
            step = len(state.text) - len(state._parent.text)
            if step > left:
                break
            state, left = state._parent, left - step
        if not left:
            return state
        return self.session.lm.shorten_state(state, left)

    def _next_masses(self) -> NDArray[np.float64]:
        """`[257]` masses relative to the text's probability; they sum to about 1."""
        evaluated = self.session.evaluated
        masses = np.zeros(257)
        with self.session.lock:
            for bundle in self.bundles:
                shares, log_mass = evaluated.next_bytes(
                    bundle.node, bundle.lo, bundle.hi, bundle.depth
                )
                if log_mass > -math.inf:
                    masses += math.exp(bundle.log_weight + log_mass - self.logprob) * shares
        return masses

    def _step(self, byte: int) -> State:
        """The state after one byte: narrow every bundle, open the contexts that end here."""
        session = self.session
        if session.lm.outgrown(self):
            return session.lm.continue_state(self, bytes([byte]))
        with session.lock:
            kept = [b for b in (self._narrow(bundle, byte) for bundle in self.bundles) if b]
            logprob = log_sum([bundle.log_p for bundle in kept])
            if logprob == -math.inf:
                raise impossible(self.whole + bytes([byte]), self.missing)
            kept, dropped = _without_light(kept, logprob, self.effort)
            opened, left_out = self._open(kept, logprob)
        missing = min(1.0, self.missing + dropped + left_out)
        whole = self.whole + bytes([byte])
        return State(session, whole, (*kept, *opened), logprob, missing, self.effort, parent=self)

    def _narrow(self, bundle: Bundle, byte: int) -> Bundle | None:
        evaluated = self.session.evaluated
        lo, hi = evaluated.index.narrow(bundle.lo, bundle.hi, bundle.depth, byte)
        mass = float(evaluated.row(bundle.node).in_order[lo:hi].sum())
        if mass <= 0:
            return None
        log_p = bundle.log_weight + math.log(mass)
        return Bundle(bundle.node, bundle.log_weight, bundle.depth + 1, lo, hi, log_p)

    def _open(self, bundles: Sequence[Bundle], logprob: float) -> tuple[list[Bundle], float]:
        """Evaluate the contexts whose last token ends here and that weigh enough.

        Returns the new bundles, and the share of the probability that was left out.
        """
        evaluated, index = self.session.evaluated, self.session.evaluated.index
        ended: list[tuple[float, int, int]] = []
        for bundle in bundles:
            in_order = evaluated.row(bundle.node).in_order
            at = bundle.lo
            while at < bundle.hi and len(index.sorted[at]) == bundle.depth:
                weight = bundle.log_weight + log(float(in_order[at]))
                if weight > -math.inf:
                    ended.append((weight, bundle.node, int(index.ids[at])))
                at += 1
        ended.sort(reverse=True)
        shares = [math.exp(weight - logprob) for weight, _, _ in ended]
        least = min(self.effort.theta, self.effort.first)  # no context was evaluated here before
        count = sum(share >= least for share in shares)
        while math.fsum(shares[count:]) > 0.5:
            count += 1  # whatever θ is, the better part is never left out
        nodes = evaluated.extend([(node, token) for _, node, token in ended[:count]])
        size = len(index.sorted)
        opened = [
            Bundle(node, weight, 0, 0, size, weight)
            for node, (weight, _, _) in zip(nodes, ended, strict=False)
        ]
        return opened, math.fsum(shares[count:])

    def __copy__(self) -> State:
        return self  # immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy elsewhere evaluates again: the tree itself does not travel.
        session = self.session
        return (_restore, (session.lm, session.opening, self.whole, self.effort))

    def __repr__(self) -> str:
        return (
            f"State({self.text[-20:]!r}, {len(self.bundles)} bundles, "
            f"logprob={self.logprob:.4f}, exact_from={self.exact_from})"
        )


def build(
    session: Session,
    whole: bytes,
    canonical: Sequence[int],
    effort: Effort,
    parent: State | None = None,
) -> State:
    """The state after a text that the session began, in rounds.

    Args:
        session: its root is after `session.start` bytes of the text.
        whole: the text, lead included.
        canonical: the tokens of `whole[session.start:]`.
        effort: how much to spend.
        parent: the state that this one continues.

    Raises:
        ZeroProbabilityError: if the text has probability zero.
    """
    rest = whole[session.start :]
    with session.lock:
        room = session.lm.engine.window
        if room is not None:
            room -= session.length(0)
        rounds = Rounds(
            session.evaluated,
            0,
            KnownText.of(rest, session.lm.index),
            canonical,
            effort,
            through=True,
            deepest=room,
        )
        lattice = rounds.run()
        size, known = len(rest), rounds.known
        logprob = float(lattice.log_prefix[size])
        if logprob == -math.inf:
            raise impossible(whole, float(lattice.missing.sum()))
        bundles = []
        for vertex in lattice.vertices:
            weight, depth = lattice.log_weight(vertex), size - vertex.position
            if weight == -math.inf or depth > len(vertex.starting):
                continue
            if depth == 0:
                bundle = Bundle(vertex.node, weight, 0, 0, len(session.lm.index.sorted), weight)
            else:
                lo, hi = known.lo[vertex.position, depth - 1], known.hi[vertex.position, depth - 1]
                mass = weight + log(vertex.starting[depth - 1])
                bundle = Bundle(vertex.node, weight, depth, int(lo), int(hi), mass)
            if bundle.log_p > -math.inf:
                bundles.append(bundle)
        bundles, dropped = _without_light(bundles, logprob, effort)
        missing = min(1.0, float(lattice.missing.sum()) + dropped)
    # An implied leading space is conditioned on: it is not part of the text.
    lead = len(session.opening.lead) - session.start
    given = float(lattice.log_prefix[lead]) if lead > 0 else 0.0
    bundles = [
        bundle._replace(log_weight=bundle.log_weight - given, log_p=bundle.log_p - given)
        for bundle in bundles
    ]
    return State(session, whole, tuple(bundles), logprob - given, missing, effort, parent)


def _without_light(
    bundles: list[Bundle], logprob: float, effort: Effort
) -> tuple[list[Bundle], float]:
    """The bundles that weigh something, and the share of the probability of the others."""
    floor = logprob + log(min(_LIGHT, effort.theta))
    light = [bundle for bundle in bundles if bundle.log_p < floor]
    if not light:
        return bundles, 0.0
    dropped = math.fsum(math.exp(bundle.log_p - logprob) for bundle in light)
    return [bundle for bundle in bundles if bundle.log_p >= floor], dropped


def _restore(lm: CharLM, opening: Opening, whole: bytes, effort: Effort) -> State:
    return lm.begin(opening, whole, effort)
