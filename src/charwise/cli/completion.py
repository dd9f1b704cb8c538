"""The parts of `charwise complete` and `demo`: a model, a request, and the methods that answer it.

A method turns a request into texts. To add one, write the function and name it in `METHODS`: the
command line, its table and its JSON show whatever is there, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.text import Text

from charwise.cli.output import SCISSORS, spelling, token_spelling
from charwise.errors import SettingError
from charwise.healing import Rule, allowed_next, cut

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.cursor.options import GenerationOptions, Report
    from charwise.tokens.index import SortedVocabulary
    from charwise.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class Loaded:
    """A causal language model by its name, over characters and over tokens."""

    name: str
    lm: CharLM

    @property
    def model(self) -> Any:
        """The transformers model; None with another engine."""
        return getattr(self.lm.engine, "model", None)

    @property
    def index(self) -> SortedVocabulary:
        """The index of its vocabulary."""
        return self.lm.index


@dataclass(frozen=True)
class Request:
    """The prompt and the options. At temperature 0 the likeliest token is always taken."""

    prompt: bytes
    options: GenerationOptions
    rule: Rule = "auto"

    def __post_init__(self) -> None:
        n, temperature, seed = self.options.n, self.options.temperature, self.options.seed or 0
        # Beyond these, float32 scores overflow where tokens are drawn.
        if temperature and not 1e-6 <= temperature <= 1e6:
            raise SettingError(
                f"temperature is {temperature}: it must be 0, or lie in [1e-06, 1e+06]."
            )
        if seed >= 2**64:  # torch's generators take none
            raise SettingError(f"seed is {seed}: it must have 64 bits at most.")
        if n > 1 and temperature == 0:
            raise SettingError(
                f"n is {n}, but at temperature 0 there is one completion: set a temperature."
            )

    def told(self, progress: Report) -> Request:
        """The same, which says how far it is where a method can."""
        return replace(self, options=replace(self.options, progress=progress))


@dataclass(frozen=True)
class _PromptCut:
    """The tokens of a prompt: `ids[:kept]` stay, the rest is given back as `forced` bytes.

    `dropped` tokens at the start did not fit into the model's window; `allowed` tokens may come
    first after the cut.
    """

    ids: list[int]
    kept: int
    forced: bytes
    dropped: int
    allowed: int


Method = Callable[[Loaded, Request], list[str]]


def plain(loaded: Loaded, request: Request) -> list[str]:
    """After the prompt's own tokens, as everybody does it."""
    return _generate(loaded, request, "off")


def healed(loaded: Loaded, request: Request) -> list[str]:
    """After the cut, with the bytes cut off forced."""
    return _generate(loaded, request, request.rule)


def exact(loaded: Loaded, request: Request) -> list[str]:
    """After the prompt's characters, however they fall into tokens."""
    return [one.text for one in loaded.lm.complete(request.prompt, request.options)]


#: Every method by its name, in the order in which they are shown.
METHODS: dict[str, Method] = {"plain": plain, "healed": healed, "exact": exact}


def methods(loaded: Loaded) -> dict[str, Method]:
    """The methods that a model's engine has: those that call `generate` need transformers.

    >>> import charwise
    >>> list(methods(Loaded("embedded", charwise.load())))
    ['plain', 'healed', 'exact']
    """
    if hasattr(loaded.model, "generate"):
        return METHODS
    return {"exact": exact}


def _generate(loaded: Loaded, request: Request, rule: Rule) -> list[str]:
    import torch

    from charwise.engines.pretrained import quietly
    from charwise.healing.transformers.generate import heal_generate

    settings: dict[str, Any] = {"do_sample": False}
    options = request.options
    if options.temperature > 0:
        settings = {"do_sample": True, "temperature": options.temperature, "top_k": 0}
        settings["num_return_sequences"] = options.n
    torch.manual_seed(options.seed or 0)
    ids, _ = _prompt_ids(loaded, request)
    with quietly():
        return heal_generate(
            loaded.model,
            loaded.index,
            [ids],
            rule=rule,
            max_new_bytes=options.max_new_bytes,
            **settings,
        )


def _prompt_ids(loaded: Loaded, request: Request) -> tuple[list[int], int]:
    """The prompt's ids as the model sees them, and how many at the start do not fit its window.

    A completion of n bytes takes at most n tokens; half of the window always stays for the prompt.
    """
    vocabulary = loaded.index.vocabulary
    ids = vocabulary.encode(vocabulary.implied_prefix + request.prompt)
    window = loaded.lm.engine.window
    dropped = 0
    if window is not None:
        room = max(window // 2, window - request.options.max_new_bytes - vocabulary.max_token_bytes)
        dropped = max(0, len(ids) - room + len(vocabulary.bos_ids))
    return [*vocabulary.bos_ids, *ids[dropped:]], dropped


def prompt_cut(loaded: Loaded, request: Request) -> _PromptCut:
    """Where the request's rule cuts its prompt."""
    ids, dropped = _prompt_ids(loaded, request)
    kept, forced = cut(ids, loaded.index, request.rule)
    allowed = len(allowed_next(forced, loaded.index))
    return _PromptCut(ids, len(kept), forced, dropped, allowed)


def cut_line(vocabulary: Vocabulary, cut: _PromptCut, shown: int = 10) -> Text:
    """The last tokens of a prompt, divided by bars, with scissors where it is cut.

    >>> from charwise import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"->", b" N", b"od", b" Node"])
    >>> cut_line(vocabulary, _PromptCut([0, 1, 2], 1, b" Nod", 0, 3)).plain
    '-> ✂ ␣N|od'
    """
    given_back = [token_spelling(vocabulary, id) for id in cut.ids[cut.kept :]]
    start = max(0, cut.kept - max(3, shown - len(given_back)))
    kept = [token_spelling(vocabulary, id) for id in cut.ids[start : cut.kept]]
    line = Text().append("…|" if start else "", "dim")
    line.append_text(_tokens(kept, ("white on grey23", "white on grey35")))
    line.append(SCISSORS, style="bold red")
    line.append_text(_tokens(given_back, ("bold black on yellow", "bold black on gold1")))
    return line


def _tokens(spellings: Sequence[str], styles: tuple[str, str]) -> Text:
    line = Text()
    for at, token in enumerate(spellings):
        if at:
            line.append("|", style="dim")
        line.append(token, style=styles[at % 2])
    return line


def cut_sentence(cut: _PromptCut, rule: object) -> str:
    """The cut in words.

    >>> cut_sentence(_PromptCut([0, 1, 2], 1, b" Nod", 0, 3), "auto")
    "2 tokens given back; ' Nod' is forced; 3 tokens may come first."
    """
    dropped = (
        f" The first {cut.dropped} tokens do not fit the model's window." if cut.dropped else ""
    )
    if not cut.forced:
        why = (
            "the prompt ends where a token must end" if rule == "auto" else f"the rule is {rule!r}"
        )
        return f"Nothing given back: {why}.{dropped}"
    back = len(cut.ids) - cut.kept
    return (
        f"{_count(back, 'token')} given back; {spelling(cut.forced)!r} is forced; "
        f"{_count(cut.allowed, 'token')} may come first.{dropped}"
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
