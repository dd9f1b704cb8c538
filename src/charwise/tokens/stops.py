"""Stop strings: searched byte by byte, in the new text only, across tokens.

The one that is complete first ends the text; of two that are complete at the same byte, the longer.
"""

from collections.abc import Iterable
from contextlib import suppress

from charwise.errors import SettingError, items, quote
from charwise.tokens.canonical import to_bytes

#: One stop string, or several.
StopStrings = str | bytes | Iterable[str | bytes] | None


class Stops:
    """The stop strings of one request."""

    def __init__(self, stop: StopStrings = None) -> None:
        if stop is None:
            stop = ()
        listed = [stop] if isinstance(stop, str | bytes) else items(stop)
        if listed is None:
            raise SettingError(f"stop is {quote(stop)}: give a string, or a list of strings.")
        strings = []
        for string in listed:
            if not isinstance(string, str | bytes):
                raise SettingError(f"a stop string is text or bytes, not {quote(string)}.")
            if not string:
                raise SettingError("a stop string is empty: it would stop before anything is new.")
            strings.append(to_bytes(string))
        self.strings: tuple[bytes, ...] = tuple(strings)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.strings)

    def first(self, text: bytes | bytearray, since: int = 0) -> tuple[int, int] | None:
        """Return begin and end of the stop string that is complete first; None if there is none.

        Only those count that end after `since` bytes: what was searched before as the text grew.
        """
        begins = ((text.find(one, max(0, since - len(one) + 1)), one) for one in self.strings)
        matches = ((begin + len(one), begin) for begin, one in begins if begin >= 0)
        end, begin = min(matches, default=(0, None))
        return None if begin is None else (begin, end)

    def held(self, text: bytes | bytearray) -> int:
        """Return how many bytes at the end of a text may be the beginning of a stop string."""
        sizes = (
            size
            for string in self.strings
            for size in range(min(len(string) - 1, len(text)), 0, -1)
            if text.endswith(string[:size])
        )
        return max(sizes, default=0)

    def safe_after(self, forced: bytes) -> list[str]:
        """Return those of which no match can begin inside a forced text: an engine may search them.

        It writes the forced text, the end of the prompt, again.
        """
        ends = [forced[at:] for at in range(len(forced))]
        apart = []
        for string in self.strings:
            if not any(string.startswith(end[: len(string)]) for end in ends):
                with suppress(UnicodeDecodeError):  # no engine searches such bytes
                    apart.append(string.decode())
        return apart
