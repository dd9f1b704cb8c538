"""A few hundred calls of the fuzzer, the same each time."""

from __future__ import annotations

import pytest
from hypothesis import given

from fuzz_calls import CALLS, Drawn, drawn_calls, make
from models import examples

#: Calls that take tenths of a second.
SLOW = ("charwise", "charwise.load", "heal_generate")


@given(drawn_calls([name for name in CALLS if name not in SLOW]))
@examples(1000)
def test_only_typed_errors_come_out(call: Drawn) -> None:
    make(call)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_only_typed_errors_come_out_of_what_takes_longer(name: str) -> None:
    @given(drawn_calls([name]))
    @examples(40)
    def a_few(call: Drawn) -> None:
        make(call)

    a_few()
