"""What an editor is offered at a cursor: completions that fit the text around it.

With a model that was trained to fill in the middle, both sides count; with others, the text before
the cursor does. Either way nothing is offered that stands behind the cursor already.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from charwise.char_lm import CharLM
from charwise.cursor.drafts import Completion
from charwise.cursor.limit import Cancel
from charwise.errors import SettingError, TemplateError, check_count, check_number
from charwise.known_text.effort import Effort, effort_of
from charwise.serve.documents import lines_of
from charwise.serve.interruption import Interruptible, wanted_until
from charwise.serve.states import States
from charwise.template import Order, Template

#: How far an offer may go: to the end of the line, of the block, or as far as it gets.
Until = Literal["line", "block", "length"]

#: Code points that a token has at most, on average, where a window bounds what is worth reading.
_LETTERS = 6

#: Code points before the cursor that are read where there is no window.
_FAR = 65_536


#: A word, an operator, or another sign.
_TOKEN = re.compile(r"\w+|[-+*/=<>!&|^%~@.]+|[^\w\s]")


@dataclass(frozen=True)
class Wishes:
    """What to offer, and how much to spend on it.

    Attributes:
        candidates: how many offers.
        max_bytes: how long they may be.
        until: "line", "block" (lines that are indented at least as the one with the cursor, up to
            an empty one), or "length". Before other text on its line, an offer is one line.
        stop: strings at which offers end.
        temperature, top_p, top_k, seed: how they are drawn; 0 takes the most probable.
        seconds: a budget for drawing; None for none.
        threshold: probability under which nothing is offered, of what was drawn.
        infill: whether the text after the cursor counts, if the model can fill in.
        order: "psm" or "spm", for such a model.
        preset, tolerance: how much to spend on the sums, as for `CharLM.score`.
        before, after: code points of the text that are read; None for what the window holds.

    >>> Wishes(until="page")
    Traceback (most recent call last):
    charwise.errors.SettingError: until is 'page': choose 'line', 'block' or 'length'.
    """

    candidates: int = 1
    max_bytes: int = 128
    until: Until = "line"
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    seconds: float | None = 1.0
    threshold: float = 0.0
    infill: bool = True
    order: Order | None = None
    preset: str | None = None
    tolerance: float | None = None
    before: int | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates, 1)
        check_count("max_bytes", self.max_bytes, 1)
        if self.until not in ("line", "block", "length"):
            raise SettingError(f"until is {self.until!r}: choose 'line', 'block' or 'length'.")
        if isinstance(self.stop, str) or not all(isinstance(one, str) and one for one in self.stop):
            raise SettingError(f"stop is {self.stop!r}: it must be a list of strings.")
        object.__setattr__(self, "stop", tuple(self.stop))
        for name in ("temperature", "seconds"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0.0, math.inf)
        for name in ("top_p", "threshold"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name in ("top_k", "seed", "before", "after"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0)
        if not isinstance(self.infill, bool):
            raise SettingError(f"infill is {self.infill!r}: it must be true or false.")
        if self.order not in (None, "psm", "spm"):
            raise SettingError(f"order is {self.order!r}: choose 'psm' or 'spm'.")
        self.effort(None)

    def effort(self, default: Effort | None) -> Effort | None:
        """What is to be spent on sums; the default if nothing was said."""
        if self.preset is None and self.tolerance is None:
            return default
        return effort_of(self.preset, self.tolerance)


class Offer(NamedTuple):
    """A text to insert at the cursor, and the probability of what was drawn for it.

    >>> Offer("y", 0.5).text
    'y'
    """

    text: str
    probability: float


class Offers:
    """Offers of one model, from states that are kept by content.

    Not for several threads at once: give the model one of its own.

    Args:
        lm: the model.

    Attributes:
        states: those of the texts asked for lately.

    >>> import charwise
    >>> offers = Offers(charwise.load())
    >>> offers.at("import nump", "", Wishes(max_bytes=1))[0].text
    'y'
    """

    def __init__(self, lm: CharLM) -> None:
        self.lm = CharLM(Interruptible(lm.engine), preset=lm.effort)
        self.states = States(self.lm)
        try:
            self.template: Template | None = Template.of(lm.vocabulary)
        except TemplateError:
            self.template = None

    @property
    def far(self) -> int:
        """How many code points before the cursor are worth reading."""
        window = self.lm.engine.window
        return _FAR if window is None else min(_FAR, _LETTERS * window)

    def warm(self, before: str, wishes: Wishes, cancel: Cancel) -> None:
        """Read a text, so that offers after it, or near it, are there sooner."""
        if not (wishes.infill and self.template):
            with wanted_until(cancel):
                self.states.at(_bytes(before), wishes.effort(self.lm.effort))

    def at(
        self, before: str, after: str, wishes: Wishes, cancel: Cancel | None = None
    ) -> list[Offer]:
        """What may be inserted between two texts, the best first; empty where nothing fits.

        Args:
            before, after: what is around the cursor.
            wishes: what to offer.
            cancel: ends the work within one model call when it is set.

        Raises:
            InterruptedWork: cancelled before anything was drawn.
            CharwiseError: as `CharLM.complete`.
        """
        with wanted_until(cancel or _Never()):
            drawn = self._drawn(before, after, wishes, cancel)
        found: dict[str, Offer] = {}
        for completion in drawn:
            text = fitting(_text(completion.raw), before, after, wishes.until)
            probability = math.exp(min(0.0, completion.logprob))
            if text.strip() and probability >= wishes.threshold:
                found.setdefault(text, Offer(text, probability))
        return list(found.values())

    def _drawn(
        self, before: str, after: str, wishes: Wishes, cancel: Cancel | None
    ) -> list[Completion]:
        draw: dict[str, Any] = {
            "n": wishes.candidates,
            "temperature": wishes.temperature,
            "top_p": wishes.top_p,
            "top_k": wishes.top_k,
            "seed": wishes.seed,
            "seconds": wishes.seconds,
            "cancel": cancel,
        }
        if wishes.infill and self.template is not None:
            return [
                *self.lm.infill(
                    _bytes(before),
                    _bytes(after),
                    max_new_bytes=wishes.max_bytes,
                    order=wishes.order,
                    preset=wishes.effort(self.lm.effort),
                    **draw,
                )
            ]
        state = self.states.at(_bytes(before), wishes.effort(self.lm.effort))
        ends = {"line": ["\r\n", "\n"], "block": ["\r\n\r\n", "\n\n"], "length": []}
        until = "line" if _rest(after) else wishes.until
        stop = [*wishes.stop, *ends[until]]
        return state.complete(max_new_bytes=wishes.max_bytes, stop=stop, **draw)


class _Never:
    def is_set(self) -> bool:
        return False


def _bytes(text: str) -> bytes:
    """A text as an editor has it, half an emoji included, as bytes."""
    return text.encode("utf-8", "replace")


def _text(raw: bytes) -> str:
    """Bytes as text, up to the first that is no character."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return raw[: error.start].decode()


def _rest(after: str) -> str:
    """What is behind the cursor on its line, without spaces at the ends."""
    return lines_of(after)[0].strip() if after else ""


def fitting(text: str, before: str, after: str, until: Until = "length") -> str:
    """A completion as far as it fits between two texts: what is there already is not repeated.

    Where something follows the cursor on its line, the completion ends with the line, and before
    it would write what follows: where the first word or sign of that occurs after brackets that
    match, or where the end of the completion is the beginning of it. Else it ends before a line
    that is the next one of the text.

    >>> fitting("bar())", "foo(", ")"), fitting("x) + 1", "foo(", ")")
    ('bar()', 'x')
    >>> fitting("e(0, 2):", "for i in rang", "(10):"), fitting("y = ind", "x, ", "dex")
    ('e', 'y = in')
    >>> fitting("1\\n    return x\\n", "    x = ", "\\n    return x\\n")
    '1'
    >>> fitting("1\\n    y = 2\\nz = 3", "def f():\\n    x = ", "", "block")
    '1\\n    y = 2'
    """
    rest = _rest(after)
    if rest:
        line = lines_of(text)[0].rstrip("\r\n") if text else ""
        return line[: _written(line, rest)]
    lines = lines_of(text)
    if until == "line" and lines:
        lines = lines[:1]
    following = next((line for line in lines_of(after) if line.strip()), None)
    indent = _indent(before[max(before.rfind("\n"), before.rfind("\r")) + 1 :])
    kept = lines[:1]
    for line in lines[1:]:
        if following is not None and line.rstrip() == following.rstrip():
            break
        if until == "block" and (not line.strip() or _indent(line) < indent):
            break
        kept.append(line)
    fits = "".join(kept)
    ends = until == "line" or len(kept) < len(lines)
    return fits.rstrip("\r\n") if ends or after[:1] in ("\n", "\r") else fits


def _written(line: str, rest: str) -> int:
    """Where a line begins to write what follows it."""
    first = _TOKEN.match(rest)
    for token in _TOKEN.finditer(line):
        if first and token[0] == first[0] and _matched(line[: token.start()]):
            return token.start()
    for size in range(min(len(line), len(rest)), 0, -1):
        if line.endswith(rest[:size]) and _matched(line[: len(line) - size]):
            return len(line) - size
    return len(line)


def _matched(text: str) -> bool:
    """Whether no bracket is open that the text opened."""
    pairs, open_ = {")": "(", "]": "[", "}": "{"}, list[str]()
    for letter in text:
        if letter in pairs.values():
            open_.append(letter)
        elif letter in pairs and open_ and open_[-1] == pairs[letter]:
            open_.pop()
    return not open_


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
