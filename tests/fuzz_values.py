"""What the fuzzer's arguments are drawn from: `ODD`, prompts, numbers, presets, command lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from charwise import Effort

Values = st.SearchStrategy[Any]


def some(*values: Any) -> Values:
    """One of these."""
    return st.sampled_from(values)


#: What makes no sense for most arguments, though Python lets one pass it. Nothing here is a number
#: that makes sense somewhere, and takes hours.
ODD = some(
    *(None, True, -1, 0.5, 1.5, math.nan, math.inf, -math.inf, "", "5", b"", -(2**70)),
    *(np.int64(3), np.float32(0.5), 1j, [], (), {}, {"a": 1}, {1, 2}, [None], [[1]], ["a", ["b"]]),
    *(object(), len, bytearray(b"ab"), memoryview(b"ab"), "\udcff", "\0", range(3), Ellipsis),
    *("x" * 2000, Fraction(1, 3), Decimal("0.5"), np.zeros(2)),
    *(np.array(2), torch.tensor(2)),
)

WORDS = some(
    "", "import nump", "for i in rang", " ", "\n\n", "naï", "中", "🙂", "<|endoftext|>", "ab"
)
TEXT = st.one_of(WORDS, st.text(max_size=6))
BYTES = st.one_of(st.binary(max_size=6), some(b"", b"ab", b"\xff", b"\xc3", "🙂".encode()[:3]))
IDS = st.one_of(st.integers(-2, 12), some(0, 8191, 8192, 8194, 8195, 2**70, np.int64(1), True))
PROMPT = st.one_of(TEXT, BYTES, st.lists(st.one_of(TEXT, BYTES, IDS), max_size=3))


EFFORT = st.builds(
    Effort,
    width=some(1, 4, 16.0, math.inf),
    threshold=some(None, 0.01, 1.0),
    tolerance=some(None, 0.5, 1e-3),
)
PRESET = st.one_of(some(None, "fast", "default", "Fast"), EFFORT)
TOLERANCE = some(None, 0.5, 1e-3, 0, 0.0, -1.0, math.nan, math.inf)
SHARE = some(0.0, 0.5, 0.99, 1.0, 1e-9, 2.0)
COVERAGE = some(0.0, 0.5, 0.9, 1.0, 2.0, math.nan, "x", None)
#: What is told how far a call is, or cannot be.
REPORT = some(None, lambda done, total: None)
SIZE = some(0, 1, 3)
FLAG = some(True, False)
SEED = some(0, 7, 2**63, 2**64, 2**64 - 1)
TEMPERATURE = some(0, 0.0, 1.0, 1e-300, 1e300, 0.7)
STOP = st.one_of(
    st.lists(st.one_of(TEXT, BYTES), max_size=2), some((), ["\n"], "ab", b"ab", [""], [b""])
)
SAMPLING = {
    "max_new_bytes": SIZE,
    "temperature": TEMPERATURE,
    "top_p": SHARE,
    "top_k": some(0, 1, 5),
    "seed": SEED,
}
BUDGET = {"seconds": some(None, 0, 0.01, 5.0, math.nan, math.inf, -1), "cancel": st.none()}
OFFSETS = st.one_of(
    st.lists(st.tuples(st.integers(-2, 8), st.integers(-2, 8)), max_size=3),
    some([(0, 1)], [(0, 1), (1, 2)], [("0", "1")], [(0,)], [(0.0, 1.0)], [(0, 2**70)]),
)
FORCED = st.one_of(BYTES, some(b" ret", b"def", b"\0"))

NUMBER = some(
    "nan", "inf", "-inf", "-1", "0", "1", "2", "1e400", "9" * 30, "", "x", "\udcff", "0.5"
)
WORD = st.one_of(TEXT, NUMBER)


def _options(*names: str, flags: Iterable[str] = ()) -> st.SearchStrategy[list[str]]:
    """A few options with any values."""
    pairs = st.tuples(some(*names), NUMBER).map(list)
    singles = some(*flags, "--json").map(lambda flag: [flag])
    return st.lists(st.one_of(pairs, singles), max_size=3).map(
        lambda parts: [*itertools.chain(*parts)]
    )


_PRESETS = st.one_of(st.just([]), some("fast", "", "x").map(lambda name: ["--preset", name]))
COMMAND_LINES = st.one_of(
    st.tuples(
        st.just(["complete", "--max-new-bytes", "2"]),
        st.lists(WORD, max_size=1),
        _options("--n", "--temperature", "--seed", "--heal", "--dtype", flags=["--stdin"]),
        _PRESETS,
    ),
    st.tuples(
        st.just(["next"]),
        st.lists(WORD, max_size=2),
        _options("--top", "--device", flags=["--chars", "--stdin"]),
        _PRESETS,
    ),
    st.tuples(
        st.just(["cover"]),
        st.lists(WORD, max_size=1),
        _options("--top", "--tolerance", flags=["--encodings", "--stdin"]),
    ),
    st.tuples(st.just(["vocab"]), _options("--top", "--prefix", "--revision")),
    st.tuples(
        st.just(["score", "-"]),
        _options("--per", "--convention", "--text-column", "--workers", "--out", flags=["--ray"]),
        _PRESETS,
    ),
).map(lambda parts: [*itertools.chain(*parts)])
