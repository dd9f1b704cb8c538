"""What became of a request, told in a header of its answer: healed, or not and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from starlette.types import Message, Send

from charwise.processors.openai.answer import Answer

#: The header's name.
HEADER = b"x-charwise"


class Outcome(NamedTuple):
    """Healed, unless there is a reason why not.

    Attributes:
        reason: one word, why the request goes through as it came.
        given_back: tokens that its prompts gave back, together.
        forced: bytes that are reproduced, together.
        method: "mask" or "exact".
        taken_over: bytes of suffixes that their middles end with, together.

    >>> Outcome(None, 2, 5).header, Outcome("max_tokens").header
    ('healed; given-back=2; forced=5', 'off; reason=max_tokens')
    """

    reason: str | None = None
    given_back: int = 0
    forced: int = 0
    method: str = "mask"
    taken_over: int = 0

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> Outcome:
        """Of the prompts that are healed together."""
        healed = [answer.healed for answer in answers]
        forced = sum(len(each.forced) for each in healed)
        given_back = sum(each.given_back for each in healed)
        return cls(None, given_back, forced, taken_over=sum(len(each.ending) for each in healed))

    @property
    def header(self) -> str:
        """The header's value."""
        if self.reason is not None:
            return f"off; reason={self.reason}"
        more = f"; taken-over={self.taken_over}" if self.taken_over else ""
        more += "; method=exact" if self.method == "exact" else ""
        return f"healed; given-back={self.given_back}; forced={self.forced}{more}"


def telling(send: Send, outcome: Outcome) -> Send:
    """A `send` that adds the header to the response, in whatever form it comes.

    What was not answered with a completion (an error, a redirection) was not healed.
    """

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            became = outcome
            if message["status"] != 200 and outcome.reason is None:
                became = Outcome("refused")
            headers = [*message.get("headers", ()), (HEADER, became.header.encode())]
            message = {**message, "headers": headers}
        await send(message)

    return tell
