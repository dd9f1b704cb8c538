"""Regular expressions and Lark grammars, matched by llguidance; JSON schemas are in `schemas.py`.

llguidance (extra `charwise[constraints]`) matches tokens. Here its tokens are those of a model
followed by the 256 bytes, so that one matcher answers for tokens, and for any bytes in between;
over bytes alone there are no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np

from charwise.constraints.constraint import END, Flags, refuse
from charwise.constraints.diagnostics import diagnosis, refuse_tokens, size, slashed, why
from charwise.constraints.validity import Fault, Validity
from charwise.errors import ConstraintError, needs, shown
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Where only one text can follow, all tokens that begin it may come, not the canonical one alone.
_ALL_TOKENS = '%llguidance {"no_forcing": true}'

#: How llguidance marks a token that stands for no bytes.
_SPECIAL = b"\xff"


class _Alphabet:
    """llguidance's view of a vocabulary: its tokens, then the 256 bytes, then the end.

    Attributes:
        width: ids of the vocabulary; byte b is `width + b`, the end `width + 256`.
        ends: the vocabulary's end tokens.
        tokenizer: llguidance's.
    """

    def __init__(self, index: SortedVocabulary | None = None) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = [] if index is None else index.vocabulary.tokens
        self.width = len(tokens)
        self.ends = [] if index is None else list(index.vocabulary.end_ids)
        self.tokenizer: LLTokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(tokens)),
            n_vocab=self.width + END + 1,
            slices=[] if index is None else None,
        )

    def ids(self, data: bytes) -> list[int]:
        """A token for each byte."""
        return [self.width + byte for byte in data]


class _Tokens:
    """The interface that llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes | None]) -> None:
        self.width = len(tokens)
        self.eos_token_id = self.width + END
        named = [token if token else _SPECIAL + b"<%d>" % n for n, token in enumerate(tokens)]
        self.tokens = [*named, *(bytes([byte]) for byte in range(END)), _SPECIAL + b"<end>"]
        empty = [n for n, token in enumerate(tokens) if not token]
        self.special_token_ids = [*empty, self.eos_token_id]

    def __call__(self, data: bytes) -> list[int]:
        return [self.width + byte for byte in data]


_alphabets: WeakKeyDictionary[SortedVocabulary, _Alphabet] = WeakKeyDictionary()
_bytes: list[_Alphabet] = []


def _alphabet(index: SortedVocabulary | None) -> _Alphabet:
    """Made once for each vocabulary: it takes a second for the largest."""
    if index is not None:
        if index not in _alphabets:
            _alphabets[index] = _Alphabet(index)
        return _alphabets[index]
    if not _bytes:
        _bytes.append(_Alphabet())
    return _bytes[0]


class Grammar:
    """A regular expression, JSON schema or Lark grammar. Made by `regex`, `json_schema`, `lark`.

    Only valid UTF-8 is ever allowed.

    Attributes:
        name: what it was made from, for messages.
        compiled: the grammar as llguidance has it.
        pattern: the regular expression, if it is one.
        check: what a finished text must pass as well, if it is a JSON schema.
        raw: the bytes that came so far.
    """

    characters = True

    def __init__(
        self,
        name: str,
        compiled: str,
        pattern: str | None,
        check: Validity | None,
        alphabet: _Alphabet,
        matcher: LLMatcher,
    ) -> None:
        self.name, self.compiled, self.pattern, self.check = name, compiled, pattern, check
        self.raw = b""
        self._alphabet, self._matcher = alphabet, matcher
        self._lock = Lock()  # llguidance answers one thread at a time, and raises in the others
        # Over the tokens of a vocabulary, where the text begins: half a millisecond saved a text.
        self._begun: WeakKeyDictionary[SortedVocabulary, LLMatcher] = WeakKeyDictionary()

    def allowed(self) -> Flags:
        """Return the bytes that may follow, `[257]` bool; at 256 whether the text may end here.

        Raises:
            ConstraintError: where the grammar is too complex for llguidance.
        """
        bits, ends = self._bits()
        bits = bits[self._alphabet.width : self._alphabet.width + END + 1]
        bits[END] = ends
        return bits

    def mask(self) -> Flags:
        """`[width]`: the tokens all of whose bytes may follow; the end tokens, if it may end."""
        bits, ends = self._bits()
        bits = bits[: self._alphabet.width]
        bits[self._alphabet.ends] = ends
        return bits

    def after(self, data: str | bytes) -> Self:
        """The grammar after more bytes.

        Raises:
            ConstraintError: at the first byte that may not follow.
        """
        data = to_bytes(data)
        ids = self._alphabet.ids(data)
        with self._lock:
            matcher = self._matcher.deep_copy()
        known = matcher.try_consume_tokens(ids)
        if matcher.is_error():
            message = why(matcher.get_error())
            raise ConstraintError(f"{self.name} cannot be followed: {message}", known)
        if known < len(ids):
            raise refuse(data, known, self.after(data[:known]).allowed())
        out = self._with(self._alphabet, matcher)
        out.raw, out._begun = self.raw + data, self._begun
        return out

    def checked_by(self, check: Validity) -> Self:
        """The same, where a finished text must pass a check as well."""
        out = self._with(self._alphabet, self._matcher)
        out.check = check
        return out

    def _with(self, alphabet: _Alphabet, matcher: LLMatcher) -> Self:
        """The same with another matcher."""
        return type(self)(self.name, self.compiled, self.pattern, self.check, alphabet, matcher)

    def over(self, index: SortedVocabulary) -> Self:
        """The same over the tokens of a vocabulary."""
        alphabet = _alphabet(index)
        if index not in self._begun:
            self._begun[index] = _matcher(self.compiled, alphabet)
        # `after` works on a copy, so that what is kept stays where the text begins.
        return self._with(alphabet, self._begun[index]).after(self.raw)

    @cached_property
    def fault(self) -> Fault | None:
        """Why the text so far is not valid JSON of the schema; None if it is, or there is none."""
        return None if self.check is None else self.check.fault(self.raw)

    def _bits(self) -> tuple[Flags, bool]:
        """Return which tokens and bytes may follow, and if the text may end: `[width + 257]`."""
        with self._lock:
            packed, ends = self._matcher.compute_bitmask(), self._matcher.is_accepting()
            message = self.error()
        if "NoExtension" in message:  # nothing may follow, and the text may not end either
            return np.zeros(self._alphabet.width + END + 1, dtype=np.bool_), False
        if message:
            raise ConstraintError(f"{self.name} cannot be followed: {why(message)}")
        bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
        return bits.view(np.bool_), ends and self.fault is None

    def error(self) -> str:
        """llguidance's message, if there is one."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    def __reduce__(self) -> tuple[Any, ...]:
        if self._alphabet.width:
            raise TypeError("a grammar over tokens cannot be pickled: pickle the one over bytes.")
        return _over_bytes, (self.name, self.compiled, self.pattern, self.check, self.raw)

    def __repr__(self) -> str:
        return f"{self.name} after {self.raw[-20:]!r}"


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
        raise ConstraintError(f"a regular expression is a str, not {shown(pattern)}.")
    name = f"the regular expression {shown(pattern)}"
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise ConstraintError(f"{name} ends in a lone backslash.", size(pattern) - 1)
    return grammar_of(name, f"start: /{slashed(pattern)}/", pattern)


def lark(grammar: str) -> Grammar:
    """The strings of a context-free grammar in Lark's notation, which begins at `start`.

    What llguidance's dialect says of tokens (`<|end|>`, `<[0-9]>`, `max_tokens=`) is refused.

    Raises:
        ConstraintError: what is no grammar, and where; one that has no string.
        MissingExtraError: if llguidance is not installed.

    >>> lark('start: "(" start ")" | "x"').after(b"((x").allowed().nonzero()[0].tolist()
    [41]
    """
    if not isinstance(grammar, str):
        raise ConstraintError(f"a grammar is a str, not {shown(grammar)}.")
    refuse_tokens(grammar)
    return grammar_of("the grammar", grammar, written=grammar)


def both_patterns(one: Grammar, other: Grammar) -> Grammar | None:
    """The strings that two regular expressions match; None if either is none, or has begun."""
    if one.pattern is None or other.pattern is None or one.raw or other.raw:
        return None
    sides = " & ".join(f"/{slashed(side.pattern or '')}/" for side in (one, other))
    return grammar_of(f"{one.name} and {other.name}", f"start: BOTH\nBOTH: {sides}")


def grammar_of(
    name: str,
    source: str,
    pattern: str | None = None,
    written: str | None = None,
) -> Grammar:
    """A grammar over bytes, compiled.

    Args:
        name: what it is called in messages.
        source: the grammar in llguidance's notation.
        pattern: the regular expression, if it was made of one.
        written: the grammar as somebody wrote it.

    Raises:
        ConstraintError: what is wrong with it, and where; one that has no string.
        MissingExtraError: if llguidance is not installed.

    >>> grammar_of("the letter", 'start: "a"').allowed().nonzero()[0].tolist()
    [97]
    """
    with needs("constraints", "expressions and grammars need llguidance"):
        from llguidance import LLMatcher
    try:
        compiled = LLMatcher.grammar_from_lark(f"{source}\n{_ALL_TOKENS}")
    except UnicodeEncodeError as error:
        raise ConstraintError(f"{name} is no text: {error.reason}.") from None
    grammar = _over_bytes(name, compiled, pattern)
    if message := grammar.error():
        what, where = diagnosis(message, pattern=pattern, grammar=written)
        raise ConstraintError(f"{name} is wrong: {what}", where)
    if not grammar.allowed().any():
        raise ConstraintError(f"{name} cannot be satisfied: no text is in it.")
    return grammar


def _over_bytes(
    name: str,
    compiled: str,
    pattern: str | None,
    check: Validity | None = None,
    raw: bytes = b"",
) -> Grammar:
    alphabet = _alphabet(None)
    grammar = Grammar(name, compiled, pattern, check, alphabet, _matcher(compiled, alphabet))
    return grammar.after(raw) if raw else grammar


def _matcher(compiled: str, alphabet: _Alphabet) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(alphabet.tokenizer, compiled, log_level=0)
