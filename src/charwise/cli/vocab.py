"""The command `charwise vocab`: a vocabulary, and the tokens that a prefix allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from charwise.cli.options import (
    HubOptions,
    JsonOption,
    ModelOption,
    TopOption,
    takes_options,
)
from charwise.cli.output import VISIBLE, console, print_json, spelling, table

if TYPE_CHECKING:
    from charwise.tokens.index import SortedVocabulary


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise vocab`."""

    model: ModelOption = "embedded"
    prefix: Annotated[
        str | None, typer.Option("--prefix", "-p", help="Show what this text allows next.")
    ] = None
    top: TopOption = 15
    as_json: JsonOption = False


@takes_options
def vocab(settings: _Settings, hub: HubOptions) -> None:
    """Describe a vocabulary, and the tokens that a prefix allows.

    It takes a tokenizer, and no model.
    """
    index = hub.index(settings.model)
    vocabulary = index.vocabulary
    firsts = _first_characters(index)
    facts: dict[str, Any] = {
        "model": settings.model,
        "tokens": len(vocabulary),
        "width": vocabulary.width,
        "special": {vocabulary.special[id]: id for id in sorted(vocabulary.special)},
        "end_ids": list(vocabulary.end_ids),
        "bos_ids": list(vocabulary.bos_ids),
        "bos_rule": vocabulary.bos_rule,
        "end_rule": vocabulary.end_rule,
        "implied_prefix": spelling(vocabulary.implied_prefix),
        "max_token_bytes": vocabulary.max_token_bytes,
        "fertility": vocabulary.fertility,
        "byte_complete": vocabulary.byte_complete,
    }
    if settings.prefix is not None:
        facts["prefix"] = _prefix_facts(index, settings.prefix.encode("utf-8", "surrogateescape"))
    if settings.as_json:
        print_json(**facts, first_characters=firsts)
        return
    screen = console()
    for name in ("tokens", "width", "max_token_bytes", "fertility"):
        screen.print(f"{name:15} {facts[name]:>9,}")
    screen.print(f"end tokens {facts['end_ids']}; every byte: {vocabulary.byte_complete}")
    screen.print(f"start      {facts['bos_ids']}: {vocabulary.bos_rule}", markup=False)
    if settings.prefix is not None:
        _print_prefix(screen, facts["prefix"], settings.top)
        return
    found = table("starts with", "tokens", "share", right=("tokens", "share"))
    for name, count in list(firsts.items())[: settings.top]:
        share = f"{count / len(vocabulary):.1%}"
        found.add_row(name.translate(VISIBLE), f"{count:,}", share)
    screen.print(found)


def _first_characters(index: SortedVocabulary) -> dict[str, int]:
    r"""How many tokens start with each character, most frequent first.

    Tokens that start inside a character count under its escaped byte.

    >>> from charwise import SortedVocabulary, Vocabulary
    >>> _first_characters(SortedVocabulary(Vocabulary.from_bytes([b" a", b" b", b"\xc3"])))
    {' ': 2, '\\xc3': 1}
    """
    counts: Counter[str] = Counter()
    for token in index.sorted:
        text = token.decode("utf-8", "backslashreplace")
        counts[text[:4] if text[0] == "\\" and token[0] >= 0x80 else text[0]] += 1
    return dict(counts.most_common())


def _prefix_facts(index: SortedVocabulary, prefix: bytes) -> dict[str, Any]:
    lo, hi = index.range(prefix)
    shorter = [index.vocabulary.tokens[id] or b"" for id in index.prefixes(prefix)]
    return {
        "text": spelling(prefix),
        "spellable": index.spellable(prefix),
        "allowed": len(index.allowed(prefix)),
        "starting_with_it": [spelling(token) for token in index.sorted[lo:hi]],
        "prefixes_of_it": [spelling(token) for token in shorter],
    }


def _print_prefix(screen: Console, facts: dict[str, Any], top: int) -> None:
    for name, words in (("starting_with_it", "start with"), ("prefixes_of_it", "are prefixes of")):
        tokens = facts[name]
        shown = " ".join(token.translate(VISIBLE) for token in tokens[:top])
        more = " …" if len(tokens) > top else ""
        line = f"{len(tokens):,} tokens {words} {facts['text']!r}: {shown}{more}"
        screen.print(Text(line), soft_wrap=True)
