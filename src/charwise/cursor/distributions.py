"""The distribution of the next byte."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint, checked
from charwise.errors import ConstraintError, SettingError, check_count, quote
from charwise.tokens.canonical import to_bytes


@dataclass(frozen=True, eq=False)
class NextBytes:
    """p(byte | text), and p(EOS | text).

    Attributes:
        probs: `[257]` float64, sums to 1; index 256 is the end of text.
        error: by how much the distribution may be off, as a total variation: an estimate
            (docs/scoring.md). `CharLM.covering` gives bounds.

    >>> nxt = NextBytes(np.eye(257)[100] * 0.75 + np.eye(257)[256] * 0.25)
    >>> nxt["d"], nxt.top(2), round(nxt.entropy, 3)
    (0.75, [('d', 0.75), ('<eos>', 0.25)], 0.811)
    """

    probs: NDArray[np.float64]
    error: float = 0.0

    @property
    def logprobs(self) -> NDArray[np.float64]:
        """The natural logarithms, `[257]`; −inf where the probability is 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.probs))

    @property
    def entropy(self) -> float:
        """The entropy in bits."""
        seen = self.probs[self.probs > 0]
        # 0 less the sum, as the negative of a sum of 0 would be shown as -0.0.
        return float(0.0 - (seen * np.log2(seen)).sum())

    @property
    def eos(self) -> float:
        """The probability that the text ends here."""
        return float(self.probs[END])

    def __getitem__(self, byte: str | bytes | bytearray | memoryview | int | np.integer) -> float:
        """Probability of one byte: `nxt["d"]`, `nxt[b"d"]`, `nxt[100]`; `nxt["<eos>"]` is EOS.

        Raises:
            SettingError: a text of several bytes, or of none.
            IndexError: a number above 256, which is EOS too, or below 0.
        """
        if isinstance(byte, str) and byte == show_byte(END):
            byte = END
        if not isinstance(byte, int | np.integer):
            data = to_bytes(byte)
            if len(data) != 1:
                raise SettingError(f"{quote(data)} has {len(data)} bytes: give one, or '<eos>'.")
            byte = data[0]
        if not 0 <= byte <= 256:
            raise IndexError(f"{byte} is no byte: give 0 to 255, or 256 for the end of text.")
        return float(self.probs[byte])

    def top(self, k: int) -> list[tuple[str, float]]:
        """The k most probable, as (text, probability); bytes that are not ASCII as `\\xNN`."""
        check_count("k", k, 0)
        order = np.argsort(-self.probs, kind="stable")[:k]
        return [(show_byte(int(code)), float(self.probs[code])) for code in order]

    def under(self, constraint: Constraint) -> NextBytes:
        """The distribution over the bytes that a constraint allows, and the end if it may end.

        Renormalised, so what the constraint will allow later does not count: docs/constraints.md.

        Raises:
            ConstraintError: no constraint, or one that allows nothing of positive probability.

        >>> from charwise import constraints
        >>> nxt = NextBytes(np.eye(257)[100] * 0.75 + np.eye(257)[256] * 0.25)
        >>> nxt.under(constraints.choices(["d"])).top(1)
        [('d', 1.0)]
        """
        masses = np.where(checked(constraint).allowed(), self.probs, 0.0)
        if not masses.sum() > 0:
            raise ConstraintError(
                "the model gives all that the constraint allows here probability zero."
            )
        return replace(self, probs=masses / masses.sum())


def show_byte(code: int) -> str:
    """A byte as text: ASCII as itself, others escaped, 256 as `<eos>`."""
    if code == END:
        return "<eos>"
    return chr(code) if code < 128 else f"\\x{code:02x}"
