"""A fuzzer: whatever the public functions are given, only errors of `charwise.errors` come out.

    make fuzz SECONDS=600        every finding once, with a call that shows it
    pytest tests/test_fuzz.py    the same few hundred calls each time, as a test

`fuzz_calls.CALLS` lists what is called, and what each argument is drawn from: things that make
sense, and edges. In half of the calls one argument is something that makes none. What comes out
may be a result, a `CharwiseError`, a `TypeError` that Python itself raises (no frame of ours is in
it), or what `Call.may` names, such as the `IndexError` of a sequence. A call that takes longer
than `PATIENCE` is a finding too.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz_calls import CALLS, Drawn, drawn_calls, make, ours

#: Seconds that a call may take: all have little to do.
PATIENCE = 30.0


def _too_long(*_: object) -> None:
    raise TimeoutError(f"it takes longer than {PATIENCE:g} seconds.")


def findings(seconds: float, names: Iterable[str]) -> dict[str, str]:
    """What comes out in so many seconds, by where it was raised: the calls that show it."""
    found: dict[str, str] = {}
    end = time.monotonic() + seconds
    for number in itertools.count():

        @seed(number)
        @settings(
            max_examples=200,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(drawn_calls(names))
        def few_hundred(call: Drawn) -> None:
            if time.monotonic() >= end:
                return
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            try:
                make(call)
            except Exception as error:
                frame = ours(error)
                place = f"{Path(frame.filename).name}:{frame.lineno}" if frame else "no frame"
                key = f"{type(error).__name__} at {place} in {frame.name if frame else '?'}"
                shown = f"{call.name}({call.given})\n    {type(error).__name__}: {error}"[:600]
                if key not in found or len(shown) < len(found[key]):
                    found[key] = shown
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        few_hundred()
        if time.monotonic() >= end:
            return found
    raise AssertionError


def main() -> int:
    """The command: `python tests/fuzz.py --seconds 600 [NAME …]`."""
    parser = argparse.ArgumentParser(description="Fuzz the public functions of charwise.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(CALLS)}")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    found = findings(arguments.seconds, arguments.names or CALLS)
    for number, (place, shown) in enumerate(sorted(found.items()), 1):
        print(f"{number}. {place}\n    {shown}")
    print(f"{len(found)} findings in {arguments.seconds:g} seconds.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
