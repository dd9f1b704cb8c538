"""The commands `charwise next` and `charwise cover`: distributions, and the terms of their sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.text import Text

from charwise.cli.options import (
    EffortOptions,
    JsonOption,
    ModelOptions,
    PromptArgument,
    StdinOption,
    TopOption,
    read_prompt,
    takes_options,
)
from charwise.cli.output import (
    VISIBLE,
    console,
    print_json,
    spelling,
    spinner,
    table,
    token_spelling,
)
from charwise.errors import LimitError

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.coverings.covering import Interval, Member
    from charwise.tokens.vocabulary import Vocabulary

#: Contexts that `cover` visits at most: a second or two.
_MOST_VISITED = 2_000

#: Numbers of token strings from here on are shown as powers of ten.
_LARGEST = 10**18


@dataclass(frozen=True)
class _NextSettings:
    """The options of `charwise next` itself."""

    prompt: PromptArgument = None
    stdin: StdinOption = False
    chars: Annotated[bool, typer.Option("--chars", help="Characters instead of bytes.")] = False
    top: TopOption = 10
    as_json: JsonOption = False


@takes_options
def next_bytes(options: ModelOptions, effort: EffortOptions, settings: _NextSettings) -> None:
    """Print the probabilities of the next byte or character."""
    from charwise.cursor.expansion import next_chars

    text = read_prompt(settings.prompt, settings.stdin)
    lm = options.load(effort)
    with spinner("summing over tokenizations"):
        state = lm.state(text)
        nxt = next_chars(state, least=settings.top) if settings.chars else state.next()
        rows, error = nxt.top(settings.top), nxt.error + 0.0
        entropy = state.next().entropy + 0.0  # never −0.0
    if settings.as_json:
        print_json(
            model=options.model,
            prompt=spelling(text),
            exact_from=state.exact_from,
            entropy_bits=entropy,
            error=error,
            next=[{"text": name, "probability": p} for name, p in rows],
        )
        return
    what = "next character" if settings.chars else "next byte"
    found = table(what, "probability", "", right=("probability",))
    for name, p in rows:
        found.add_row(Text(_shown(name)), f"{p:.4f}", Text("█" * round(40 * p), style="green"))
    out = console()
    out.print(found)
    out.print(
        f"entropy of the next byte {entropy:.3f} bits; may be off by {error:.1g}; "
        f"exact from byte {state.exact_from}",
        soft_wrap=True,
    )


@dataclass(frozen=True)
class _CoverSettings:
    """The options of `charwise cover` itself."""

    prompt: PromptArgument = None
    stdin: StdinOption = False
    encodings: Annotated[
        bool, typer.Option("--encodings", help="Only token strings that spell exactly the text.")
    ] = False
    top: TopOption = 10
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Most that may be left out, as a share.")
    ] = 1e-6
    as_json: JsonOption = False


@takes_options
def cover(options: ModelOptions, settings: _CoverSettings) -> None:
    """Print the likeliest token strings that cover a text."""
    text = read_prompt(settings.prompt, settings.stdin)
    if math.isnan(settings.tolerance):
        raise typer.BadParameter("--tolerance nan: it must be a share, in [0, 1].")
    lm = options.load()
    found = _covering(lm, text, settings)
    lower, tokens = found.bounds.lower, lm.vocabulary.tokens
    if settings.as_json:
        print_json(
            model=options.model,
            prompt=spelling(text),
            size=found.size if found.size < _LARGEST else None,
            log10_size=math.log10(found.size) if found.size else None,
            settled=found.settled,
            contexts=found.contexts,
            lower=lower,
            upper=found.bounds.upper,
            missing=found.bounds.missing,
            members=[
                {
                    "tokens": [spelling(tokens[id] or b"") for id in member.token_ids],
                    "ids": list(member.token_ids),
                    "logprob": member.logprob,
                    "share": _share(member, lower),
                }
                for member in found.members
            ],
        )
        return
    shown = table("tokens", "share", "log p", "ids", right=("share", "log p"))
    for member in found.members:
        line = "|".join(token_spelling(lm.vocabulary, id) for id in member.token_ids)
        ids = " ".join(map(str, member.token_ids))
        shown.add_row(Text(line), f"{_share(member, lower):.4f}", f"{member.logprob:.3f}", ids)
    out = console()
    out.print(shown)
    noun = "encodings" if settings.encodings else "members"
    for line in found.sentences(noun, _lead_note(lm.vocabulary)):
        out.print(line, soft_wrap=True)


class _Found(NamedTuple):
    """The members of a covering, or the encodings of a text, that are shown.

    Attributes:
        members: the likeliest.
        size: how many there are in all.
        settled: whether no others may be likelier.
        contexts: that were visited.
        bounds: of the log-probability of the prefix.
    """

    members: list[Member]
    size: int
    settled: bool
    contexts: int
    bounds: Interval

    def sentences(self, noun: str, lead: str) -> Iterator[str]:
        """The sentences below the table, one a line."""
        size = self.size
        many = f"{size:,}" if size < _LARGEST else f"some 10^{math.floor(math.log10(size))}"
        yield f"{len(self.members):,} of {many} {noun}; {self.contexts:,} contexts visited{lead}"
        if self.contexts == _MOST_VISITED:
            yield (
                f"The search ends at {_MOST_VISITED:,} contexts; in Python, "
                "lm.covering(…, max_contexts=…) goes further."
            )
        if not self.settled:
            yield (
                "Which come next is not settled: the text has too many tokenizations of like "
                "weight. A shorter one has fewer."
            )
        lower, upper, missing = self.bounds.lower, self.bounds.upper, self.bounds.missing + 0.0
        yield (
            f"log p of the prefix in [{lower:.6f}, {upper:.6f}] nats: at most {missing:.2g} of it "
            "left out"
        )


def _covering(lm: CharLM, text: bytes, settings: _CoverSettings) -> _Found:
    with spinner("visiting token strings"):
        covering = lm.covering(text, tolerance=settings.tolerance, max_contexts=_MOST_VISITED)
        every = lm.encodings(text) if settings.encodings else None
        listed = covering if every is None else every
        try:
            members, settled = listed.top(settings.top, max_contexts=_MOST_VISITED), True
        except LimitError as error:
            members, settled = list(error.found), False
    return _Found(members, listed.size, settled, covering.contexts, covering.prefix_logprob())


def _share(member: Member, lower: float) -> float:
    """The share of a member, of a prefix of at least this log-probability."""
    return math.exp(min(0.0, member.logprob - lower))


def _lead_note(vocabulary: Vocabulary) -> str:
    """The note on bytes that the tokenizer puts before a text; empty if there are none.

    >>> from charwise import Vocabulary
    >>> _lead_note(Vocabulary.from_bytes([b"a"]))
    ''
    >>> _lead_note(Vocabulary([b" ", b"a"], implied_prefix=b" "))
    "; each starts with the ' ' that this tokenizer puts before a text"
    """
    if not vocabulary.implied_prefix:
        return ""
    lead = vocabulary.implied_prefix.decode()
    return f"; each starts with the {lead!r} that this tokenizer puts before a text"


def _shown(name: str) -> str:
    """A byte or a character with the invisible ones made visible."""
    shown = name.translate(VISIBLE)
    return shown if shown.isprintable() else repr(name)[1:-1]
