"""The commands `charwise next`, `cover` and `vocab`: distributions, terms of sums, vocabularies."""

import math
from dataclasses import dataclass
from typing import Any

import typer
from rich.text import Text

from charwise.cli.options import (
    MODEL,
    EffortOptions,
    HubOptions,
    JsonOption,
    ModelOptions,
    PromptOptions,
    option,
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

#: Contexts that `cover` visits at most: a second or two.
_MOST_VISITED = 2_000

#: Numbers of token strings from here on are shown as powers of ten.
_LARGEST = 10**18


_TOP = "Rows to print.", "--top", "-k"


@dataclass(frozen=True)
class _NextSettings(PromptOptions):
    chars: bool = option(False, "Characters instead of bytes.")
    top: int = option(10, *_TOP, min=1, max=1_000_000)
    as_json: JsonOption = False


@takes_options
def next_(options: ModelOptions, effort: EffortOptions, settings: _NextSettings) -> None:
    """Print the probabilities of the next byte or character."""
    from charwise.cursor.expansion import next_chars

    text = settings.read()
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
    grid = table(what, "probability", "", right=("probability",))
    for name, p in rows:
        visible_name = name.translate(VISIBLE)
        label = visible_name if visible_name.isprintable() else repr(name)[1:-1]
        grid.add_row(Text(label), f"{p:.4f}", Text("█" * round(40 * p), style="green"))
    screen = console()
    screen.print(grid)
    screen.print(
        f"entropy of the next byte {entropy:.3f} bits; may be off by {error:.1g}; "
        f"exact from byte {state.exact_from}",
        soft_wrap=True,
    )


@dataclass(frozen=True)
class _CoverSettings(PromptOptions):
    top: int = option(10, *_TOP, min=1, max=1_000_000)
    tolerance: float = option(1e-6, "Most that may be left out, as a share.", min=0.0, max=1.0)
    as_json: JsonOption = False


@takes_options
def cover(options: ModelOptions, settings: _CoverSettings) -> None:
    """Print the likeliest token strings that cover a text."""
    text = settings.read()
    if math.isnan(settings.tolerance):
        raise typer.BadParameter("--tolerance nan: it must be a share, in [0, 1].")
    lm = options.load()
    with spinner("visiting token strings"):
        covering = lm.covering(text, tolerance=settings.tolerance, max_contexts=_MOST_VISITED)
        try:
            members, settled = covering.top(settings.top, max_contexts=_MOST_VISITED), True
        except LimitError as error:
            members, settled = list(error.found), False
    bounds, size = covering.prefix_logprob(), covering.size
    # The share of each member, of a prefix of at least this log-probability.
    shares = [math.exp(min(0.0, member.logprob - bounds.lower)) for member in members]
    if settings.as_json:
        tokens = lm.vocabulary.tokens
        print_json(
            model=options.model,
            prompt=spelling(text),
            size=size if size < _LARGEST else None,
            log10_size=math.log10(size) if size else None,
            settled=settled,
            contexts=covering.contexts,
            lower=bounds.lower,
            upper=bounds.upper,
            missing=bounds.missing,
            members=[
                {
                    "tokens": [spelling(tokens[id] or b"") for id in member.token_ids],
                    "ids": list(member.token_ids),
                    "logprob": member.logprob,
                    "share": share,
                }
                for member, share in zip(members, shares, strict=True)
            ],
        )
        return
    grid = table("tokens", "share", "log p", "ids", right=("share", "log p"))
    for member, share in zip(members, shares, strict=True):
        line = "|".join(token_spelling(lm.vocabulary, id) for id in member.token_ids)
        ids = " ".join(map(str, member.token_ids))
        grid.add_row(Text(line), f"{share:.4f}", f"{member.logprob:.3f}", ids)
    many = f"{size:,}" if size < _LARGEST else f"some 10^{math.floor(math.log10(size))}"
    counts = f"{len(members):,} of {many} members; {covering.contexts:,} contexts visited"
    if lead := lm.vocabulary.implied_prefix.decode():
        counts += f"; each starts with the {lead!r} that this tokenizer puts before a text"
    lines = [counts]
    if covering.contexts == _MOST_VISITED:
        lines.append(
            f"The search ends at {_MOST_VISITED:,} contexts; in Python, "
            "lm.covering(…, max_contexts=…) goes further."
        )
    if not settled:
        lines.append(
            "Which come next is not settled: the text has too many tokenizations of like weight. "
            "A shorter one has fewer."
        )
    lines.append(
        f"log p of the prefix in [{bounds.lower:.6f}, {bounds.upper:.6f}] nats: at most "
        f"{bounds.missing + 0.0:.2g} of it left out"
    )
    screen = console()
    screen.print(grid)
    screen.print("\n".join(lines), soft_wrap=True)


@dataclass(frozen=True)
class _VocabSettings:
    model: str = option("embedded", *MODEL)
    prefix: str | None = option(None, "Show what this text allows next.", "--prefix", "-p")
    top: int = option(15, *_TOP, min=1, max=1_000_000)
    as_json: JsonOption = False


@takes_options
def vocab(settings: _VocabSettings, hub: HubOptions) -> None:
    """Describe a vocabulary, and the tokens that a prefix allows.

    It takes a tokenizer, and no model.
    """
    index = hub.index(settings.model)
    vocabulary = index.vocabulary
    names = "width end_ids bos_ids bos_rule end_rule max_token_bytes fertility byte_complete"
    facts: dict[str, Any] = {
        "model": settings.model,
        "tokens": len(vocabulary),
        "special": {vocabulary.special[id]: id for id in sorted(vocabulary.special)},
        **{name: getattr(vocabulary, name) for name in names.split()},
        "implied_prefix": spelling(vocabulary.implied_prefix),
    }
    if settings.prefix is not None:
        prefix = settings.prefix.encode("utf-8", "surrogateescape")
        lo, hi = index.range(prefix)
        shorter = [vocabulary.tokens[id] or b"" for id in index.prefixes(prefix)]
        facts["prefix"] = {
            "text": spelling(prefix),
            "spellable": index.spellable(prefix),
            "allowed": len(index.allowed(prefix)),
            "starting_with_it": [spelling(token) for token in index.sorted[lo:hi]],
            "prefixes_of_it": [spelling(token) for token in shorter],
        }
    if settings.as_json:
        print_json(**facts)
        return
    screen = console()
    for name in ("tokens", "width", "max_token_bytes", "fertility"):
        screen.print(f"{name:15} {facts[name]:>9,}")
    screen.print(f"end tokens {list(vocabulary.end_ids)}; every byte: {vocabulary.byte_complete}")
    screen.print(f"start      {list(vocabulary.bos_ids)}: {vocabulary.bos_rule}", markup=False)
    if settings.prefix is None:
        return
    for name, words in (("starting_with_it", "start with"), ("prefixes_of_it", "are prefixes of")):
        tokens = facts["prefix"][name]
        some = " ".join(token.translate(VISIBLE) for token in tokens[: settings.top])
        more = " …" if len(tokens) > settings.top else ""
        line = f"{len(tokens):,} tokens {words} {spelling(prefix)!r}: {some}{more}"
        screen.print(Text(line), soft_wrap=True)
