"""Regular expressions and grammars, matched by llguidance.

llguidance matches tokens. Here these are a model's followed by the 256 bytes, so that one matcher
answers for tokens, and for any bytes in between; over bytes alone there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import numpy as np

from charwise.constraints.constraint import END, Constraint, Flags
from charwise.constraints.gbnf import lark_of, wrong
from charwise.errors import ConstraintError, needs, quote, reason
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Where only one text can follow, all tokens that begin it may come, not the canonical one alone.
_ALL_TOKENS = '%llguidance {"no_forcing": true}'

#: llguidance calls itself along a chain of rules or references, and some thousands end the process.
MOST_RULES = 1000

#: How llguidance marks a token that stands for no bytes.
_SPECIAL = b"\xff"


class _Alphabet:
    """llguidance's view of a vocabulary: its tokens, then the 256 bytes, then the end."""

    # What llguidance asks of a tokenizer, beside `eos_token_id`, `tokens` and `special_token_ids`.
    bos_token_id = None

    def __init__(self, index: SortedVocabulary | None) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = [] if index is None else index.vocabulary.tokens
        self.width = len(tokens)
        self.ends = [] if index is None else list(index.vocabulary.end_ids)
        self.eos_token_id = self.width + END
        named = [token or _SPECIAL + b"<%d>" % n for n, token in enumerate(tokens)]
        self.tokens = [*named, *(bytes([byte]) for byte in range(END)), _SPECIAL + b"<end>"]
        empty = [n for n, token in enumerate(tokens) if not token]
        self.special_token_ids = [*empty, self.eos_token_id]
        self.tokenizer: LLTokenizer = LLTokenizer(
            TokenizerWrapper(self),
            n_vocab=self.width + END + 1,
            slices=[] if index is None else None,
        )

    def __call__(self, data: bytes) -> list[int]:
        """A token for each byte."""
        return [self.width + byte for byte in data]


_alphabets: WeakKeyDictionary[SortedVocabulary, _Alphabet] = WeakKeyDictionary()
_alphabet_of_bytes = cache(partial(_Alphabet, None))


def _alphabet(index: SortedVocabulary) -> _Alphabet:
    """Made once for each vocabulary: it takes a second for the largest."""
    if index not in _alphabets:
        _alphabets[index] = _Alphabet(index)
    return _alphabets[index]


class Grammar(Constraint):
    """A regular expression, JSON schema or grammar; only valid UTF-8 is ever allowed."""

    characters = True

    def __init__(
        self,
        name: str,
        compiled: str,
        check: Callable[[bytes], str | None] | None = None,
        alphabet: _Alphabet | None = None,
        matcher: LLMatcher | None = None,
    ) -> None:
        from llguidance import LLMatcher

        self.name, self.compiled, self.check = name, compiled, check
        self.raw = b""  # that came so far
        self._alphabet = alphabet or _alphabet_of_bytes()
        self._matcher = matcher or LLMatcher(self._alphabet.tokenizer, compiled, log_level=0)
        self._lock = Lock()  # llguidance answers one thread at a time, and raises in the others

    @cached_property
    def fault(self) -> str | None:  # type: ignore[override]
        """Why the text so far is not valid; None if it is, or is not checked."""
        return self.check(self.raw) if self.check else None

    def allowed(self) -> Flags:
        bits, ends = self._bits()
        bits = bits[self._alphabet.width : self._alphabet.width + END + 1]
        bits[END] = ends
        return bits

    def mask(self) -> Flags:
        bits, ends = self._bits()
        bits = bits[: self._alphabet.width]
        bits[self._alphabet.ends] = ends
        return bits

    def _bits(self) -> tuple[Flags, bool]:
        """Return which tokens and bytes may follow, `[width + 257]`, and if the text may end."""
        with self._lock:
            packed, ends = self._matcher.compute_bitmask(), self._matcher.is_accepting()
            message = _error(self._matcher)
        if "NoExtension" in message:  # nothing may follow, and the text may not end either
            return np.zeros(self._alphabet.width + END + 1, dtype=np.bool_), False
        if message:
            raise ConstraintError(f"{self.name} cannot be followed: {reason(message)}")
        bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
        return bits.view(np.bool_), ends and self.fault is None

    def after(self, data: str | bytes) -> Self:
        data = to_bytes(data)
        ids = self._alphabet(data)
        with self._lock:
            matcher = self._matcher.deep_copy()
        length = matcher.try_consume_tokens(ids)
        if message := _error(matcher):
            raise ConstraintError(f"{self.name} cannot be followed: {reason(message)}", length)
        if length < len(ids):
            raise self._refusal(data, length)
        out = type(self)(self.name, self.compiled, self.check, self._alphabet, matcher)
        out.raw = self.raw + data
        return out

    def over(self, index: SortedVocabulary) -> Self:
        whole = type(self)(self.name, self.compiled, self.check, _alphabet(index))
        return whole.after(self.raw)

    def __repr__(self) -> str:
        return f"{self.name} after {self.raw[-20:]!r}"


def _error(matcher: LLMatcher) -> str:
    """What stopped a matcher; empty if nothing did."""
    return matcher.get_error().split("<state>")[0] if matcher.is_error() else ""


def regex(pattern: str) -> Grammar:
    """The strings that a regular expression matches as a whole.

    The syntax is that of Rust's `regex`, on characters: no look-around, no back-references. `.` is
    any character but a line break.

    Raises:
        ConstraintError: what is no regular expression, and where; one that nothing matches.
        MissingExtraError: if llguidance is not installed.

    >>> regex(r"(yes|no)\\.").after(b"ye").allowed().nonzero()[0].tolist() == [ord("s")]
    True
    """
    if not isinstance(pattern, str):
        raise ConstraintError(f"a regular expression is a str, not {quote(pattern)}.")
    name = f"the regular expression {quote(pattern)}"
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise ConstraintError(f"{name} ends in a lone backslash.")
    return grammar_of(name, f"start: /{_slashed(pattern)}/")


def grammar(text: str) -> Grammar:
    """The strings of a context-free grammar, in Lark's notation or in llama.cpp's GBNF.

    A grammar in Lark's notation begins at `start`, one in GBNF at `root`. What llguidance's dialect
    of Lark says of tokens (`<|end|>`, `<[0-9]>`, `max_tokens=`) is refused.

    Raises:
        ConstraintError: what is no grammar, and where; one that has no string.
        MissingExtraError: if llguidance is not installed.

    >>> grammar('start: "(" start ")" | "x"').after(b"((x").allowed().nonzero()[0].tolist()
    [41]
    >>> grammar('root ::= "(" root ")" | [x-z]').after(b"(y").allowed().nonzero()[0].tolist()
    [41]
    """
    if not isinstance(text, str):
        raise ConstraintError(f"a grammar is a str, not {quote(text)}.")
    text = lark_of(text)
    bare = _LITERAL.sub(lambda one: re.sub(r"[^\n]", " ", one[0]), text)
    if bare.count(":") > MOST_RULES:
        raise ConstraintError(f"the grammar has more than {MOST_RULES:,} rules.")
    if of_tokens := _OF_TOKENS.search(bare):
        raise wrong(
            text,
            of_tokens.start(),
            f"{of_tokens[0]!r} speaks of tokens or of how they are drawn, and a constraint is over "
            "characters. Write them as text, and say how many in the expression: /.{0,20}/",
        )
    return grammar_of("the grammar", text)


#: Where nothing is said of tokens: comments, strings, expressions.
_LITERAL = re.compile(r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/', re.S)
_OF_TOKENS = re.compile(r"<[^<>\n]*>?|\b(?:max_tokens|temperature)\s*=")


def grammar_of(name: str, source: str) -> Grammar:
    """A grammar in llguidance's notation, compiled; the name is for messages."""
    with needs("constraints", "expressions and grammars need llguidance"):
        from llguidance import LLMatcher
    try:
        compiled = LLMatcher.grammar_from_lark(f"{source}\n{_ALL_TOKENS}")
    except UnicodeEncodeError as error:
        raise ConstraintError(f"{name} is no text: {error.reason}.") from None
    made = Grammar(name, compiled)
    if message := _error(made._matcher):
        raise ConstraintError(f"{name} is wrong: {_diagnosis(message)}")
    if not made.allowed().any():
        raise ConstraintError(f"{name} cannot be satisfied: no text is in it.")
    return made


#: llguidance's drawing of an expression; in one line, it has a mark below the place.
_MARKS = re.compile(r"regex parse error:\n(?:    ([^\n]*)\n    ( *)\^)?.*?\nerror: ([^\n]*)", re.S)

#: In what it wraps what is wrong, and the lines of the grammar after it.
_WRAPPED = re.compile(
    r"^at \d+\(\d+\): (?:invalid regex .*?\(in regex\)|failed to \w+ JSON schema): |\n +\d+ \|.*",
    re.S,
)


def _diagnosis(message: str) -> str:
    """What is wrong, and where, in one line."""

    def place(match: re.Match[str]) -> str:
        text, margin, what = match.groups()
        return what if text is None else f"{what} at {quote(text[len(margin) :][:20])}"

    what = _WRAPPED.sub("", _MARKS.sub(place, message))
    return reason(re.sub(r"^(?:at )?(\d+)\((\d+)\)", r"line \1, column \2", what))


def _slashed(pattern: str) -> str:
    """A regular expression as Lark writes it, between slashes.

    Line breaks stay, since they end comments in verbose mode; Lark takes none after a backslash.
    """
    others = {"/": r"\/", "\\\n": r"\n"}
    escaped = re.sub(r"\\.|/", lambda one: others.get(one[0], one[0]), pattern, flags=re.DOTALL)
    return escaped or "(?:)"
