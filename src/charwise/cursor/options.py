"""How completions are drawn: one object for every way to ask for them."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, fields, replace
from threading import Event
from typing import Any, Literal, Self, get_args

from charwise.constraints import ConstraintKeywords, constraint_of
from charwise.constraints.constraint import Constraint
from charwise.errors import SettingError, check_count, check_known, check_number, check_share, quote
from charwise.tokens.stops import Stops, StopStrings

#: Whether a constraint is applied at each step, or the model is conditioned on it as a whole.
Conditioning = Literal["local", "global"]

#: Told how much is done, and of how much.
Report = Callable[[int, int], object]


class Limit:
    """A time budget that has begun, and a flag; both are looked at between two model calls."""

    def __init__(self, seconds: float | None = None, cancel: Event | None = None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._cancel = cancel
        self.restart()

    def restart(self) -> None:
        """Begin the time budget anew."""
        self._end = time.monotonic() + self._seconds

    def reached(self) -> str:
        """Why to stop: "cancelled", "time", or "" to go on."""
        if self._cancel is not None and self._cancel.is_set():
            return "cancelled"
        return "time" if time.monotonic() >= self._end else ""


class GenerationKeywords(ConstraintKeywords, total=False):
    """The keywords of `complete` and its like: those of `GenerationOptions`, which says more."""

    n: int
    max_new_bytes: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: StopStrings
    seconds: float | None
    cancel: Event | None
    progress: Report | None
    conditioning: Conditioning
    particles: int


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How completions are drawn.

    `lm.complete(prompt, n=3, temperature=0.8)` makes one of its keywords, and
    `lm.complete(prompt, options)` takes one. `dataclasses.replace` changes some of them.

    Attributes:
        n: how many completions; at temperature 0 those of equal bytes are one, and the most
            probable comes first, by `Completion.bits_per_byte`. Draws stay as they were drawn.
        max_new_bytes: most bytes of a completion, which ends with a whole character.
        temperature: 0 takes the most probable.
        top_p: draw from the most probable that hold so much of the probability.
        top_k: draw from so many of the most probable; 0 for all of them.
        seed: for the same draws again.
        stop: strings at which to stop, byte-exact, also across tokens; not returned.
        seconds: a time budget, the prompt included. Looked at, as `cancel` is, between two model
            calls: what was drawn until then is returned. Conditioned globally it has no weight.
        cancel: a `threading.Event` that stops when it is set.
        progress: called after each model call with how many bytes are drawn, and of how many at
            most; a completion that ended early counts whole.
        constraint: what may follow the prompt. `regex`, `json_schema`, `grammar` or `choices` may
            stand for it, see `charwise.constraints.ConstraintKeywords`; at most one.
        conditioning: "local" draws from what the constraint allows at each step. "global"
            conditions on it as a whole: the n heaviest texts come as a `Weighted` list, which has
            their weights and the probability of the constraint.
        particles: the size of the sample where conditioning is "global" and the set not small.

    Raises:
        SettingError: a number out of range, an empty stop string, settings that exclude each other.
        ConstraintError: a constraint that is wrong, or two of them.

    >>> options = GenerationOptions(n=3, temperature=0.8, stop="\\n")
    >>> options.top_k, options.stop, replace(options, n=1).n
    (0, (b'\\n',), 1)
    >>> GenerationOptions(choices=["yes", "no"]).constraint
    Choices(2 left, from b'no, yes' on)
    """

    n: int = 1
    max_new_bytes: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: StopStrings = ()
    seconds: float | None = None
    cancel: Event | None = None
    progress: Report | None = None
    constraint: Constraint | None = None
    conditioning: Conditioning = "local"
    particles: int = 64
    regex: InitVar[str | None] = None
    json_schema: InitVar[Mapping[str, Any] | str | bool | None] = None
    grammar: InitVar[str | None] = None
    choices: InitVar[Iterable[str | bytes] | None] = None

    def __post_init__(
        self,
        regex: str | None,
        json_schema: Mapping[str, Any] | str | bool | None,
        grammar: str | None,
        choices: Iterable[str | bytes] | None,
    ) -> None:
        keywords = ConstraintKeywords(regex=regex, json_schema=json_schema, grammar=grammar)
        keywords |= {"choices": choices, "constraint": self.constraint}
        # A frozen dataclass: what was asked for is written in another form.
        object.__setattr__(self, "constraint", constraint_of(keywords))
        object.__setattr__(self, "stop", Stops(self.stop).strings)
        for name, least in (("n", 1), ("max_new_bytes", 0), ("top_k", 0), ("particles", 1)):
            check_count(name, getattr(self, name), least, 10**6 if least else None)
        if self.seed is not None:
            check_count("seed", self.seed, 0)
        check_number("temperature", self.temperature, 0.0)
        check_share("top_p", self.top_p)
        if self.seconds is not None:
            check_number("seconds", self.seconds, 0.0, math.inf)
        if self.conditioning not in get_args(Conditioning):
            raise SettingError(
                f"conditioning is {quote(self.conditioning)}: choose 'local' or 'global'."
            )
        if self.conditioning == "local":
            return
        truncates = self.top_p < 1 or self.top_k > 0
        if self.temperature not in (0.0, 1.0) or truncates or self.stop:
            raise SettingError(
                "conditioning='global' conditions the model as it is: leave temperature, top_p, "
                "top_k and stop alone, and write what should end a completion into the constraint."
            )
        if self.constraint is None:
            raise SettingError("conditioning='global' needs a constraint: give regex=… or another.")

    @classmethod
    def of(cls, options: Self | None, keywords: GenerationKeywords) -> Self:
        """The options of a call: those of an object, changed by keywords."""
        check_known(keywords, GenerationKeywords.__optional_keys__)
        if options is None:
            return cls(**keywords)
        return replace(options, **keywords) if keywords else options

    def limit(self) -> Limit:
        """The time budget, which begins now, and the flag that cancels."""
        return Limit(self.seconds, self.cancel)

    def refuse(self, names: str, what: str) -> None:
        """Refuse options that were set, of those named between spaces that `what` does not take."""
        for one in fields(self):
            if one.name in names.split() and getattr(self, one.name) != one.default:
                raise SettingError(f"{what} takes no {one.name}: leave it out.")
