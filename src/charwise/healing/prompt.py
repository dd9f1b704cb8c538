"""Prompts cut where healing should start, as every host does it.

Some editors send a template of fill-in-the-middle as text, or as ids: the end of the prefix inside
it is healed. No other text is read as having sentinels.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from charwise.healing.fim import Template
from charwise.healing.forced import HealedPrompt, Rule, cut, prompt_ids
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.sentinels import Spelling, spelling_of
from charwise.tokens.vocabulary import Vocabulary


def heal_prompt(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `healing.cut` as a healed prompt; raises the same errors.

    A prompt that holds a whole template of fill-in-the-middle, as ids or written out in its text,
    is cut where the prefix inside it ends. One for an edit is cut at its own end.
    """
    vocabulary, edit = index.vocabulary, None
    if isinstance(prompt, str):
        edit = edit_format(prompt)
        parts = edit and edit.parts(prompt, vocabulary)
        prompt = parts or _with_sentinels(prompt, vocabulary)
    ids = prompt_ids(prompt, vocabulary)
    start, end = (0, len(ids)) if edit else _prefix_in(ids, vocabulary)
    kept, forced = cut(ids[start:end], index, rule)
    removed = end - start - len(kept)
    before = (vocabulary.decode(kept[-3:]) + forced)[-3:]
    return HealedPrompt([*ids[:start], *kept, *ids[end:]], forced, removed, before=before)


def heal_characters(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `heal_prompt`, cut earlier where that would be inside a character.

    Expressions force characters, not bytes.
    """
    healed = heal_prompt(prompt, index, rule)
    while healed.forced and healed.forced[0] & 0xC0 == 0x80:
        earlier = heal_prompt(prompt, index, healed.removed_tokens + 1)
        if earlier.removed_tokens == healed.removed_tokens:
            break
        healed = earlier
    return healed


class _EditFormat(NamedTuple):
    """A prompt of a model that rewrites the region around the cursor.

    Attributes:
        family: the models that have it.
        pattern: matches the beginning of a prompt, up to the mark after which the answer begins.
        required, optional: control tokens that all, or some, tokenizers of the family have.
    """

    family: str
    pattern: re.Pattern[str]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def parts(self, text: str, vocabulary: Vocabulary) -> list[str | int] | None:
        """A prompt with its control tokens as ids; None if the model has none."""
        ids = {name: id for id, name in vocabulary.special.items()}
        if not set(self.required) <= set(ids):
            return None
        names = [name for name in (*self.required, *self.optional) if name in ids]
        parts = re.split(f"({_any_of(names)})", _without_start(text))
        return [*vocabulary.bos_ids, *(ids.get(part, part) for part in parts if part)]


# Atomic groups find each mark once, so a long text is read in one pass.
_EDIT_FORMATS = (
    # The cards of zed-industries/zeta-2 ("=======") and zeta-2.1 (numbered markers).
    _EditFormat(
        "Zeta 2 and 2.1",
        re.compile(
            r"<\[fim-suffix]>(?>.*?<\[fim-prefix]>)"
            r"(?>.*?(?:=======|<\|marker_\d+\|>)\n?<\[fim-middle]>)",
            re.DOTALL,
        ),
        ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"),
        ("<filename>", "<|user_cursor|>", *(f"<|marker_{number}|>" for number in range(1, 33))),
    ),
    # The card of sweepai/sweep-next-edit-1.5B; Zed's crates/edit_prediction/src/sweep_prompt.rs.
    _EditFormat(
        "Sweep's next-edit models",
        re.compile(
            r"(?=<\|file_sep\|>)(?>.*?<\|file_sep\|>original/)"
            r"(?>.*?<\|file_sep\|>current/)(?>.*?<\|file_sep\|>updated/)",
            re.DOTALL,
        ),
        ("<|file_sep|>",),
    ),
)

#: Tokens with which a text begins, as editors write them before a template.
_STARTS = (
    *("<s>", "<bos>", "<|endoftext|>", "<|begin_of_text|>", "<|startoftext|>", "<|end_of_text|>"),
    *("<｜begin▁of▁sentence｜>", "<[begin▁of▁sentence]>", "[gMASK]<sop>"),
)


def _prefix_in(ids: Sequence[int], vocabulary: Vocabulary) -> tuple[int, int]:
    """Where a prompt's prefix lies, with the sentinel before it: all, if it has no whole template.

    It ends before the suffix, or before the sentinel of the middle where the suffix is first. Where
    the middle follows the prefix, that ends the prompt.
    """
    if spelling_of(set(vocabulary.special.values())) is not None:
        template = Template.of(vocabulary)
        pair = (template.prefix, template.suffix)
        sentinels = [at for at, id in enumerate(ids) if id in pair][-2:]
        names = [ids[at] for at in sentinels]
        if ids[-1] == template.middle and names == [*pair]:
            return sentinels[0], sentinels[1]
        if ids[-1] == template.middle and names == [*reversed(pair)]:
            return sentinels[1], len(ids) - 1
    return 0, len(ids)


def _with_sentinels(text: str, vocabulary: Vocabulary) -> str | list[str | int]:
    """A text that is a whole template as a prompt with ids; any other text as it is.

    Otherwise the name of a control token may be part of what somebody edits, and stays text.
    """
    spelling = spelling_of(set(vocabulary.special.values()))
    parsed = None if spelling is None else parse_template(text, spelling)
    ids = {name: id for id, name in vocabulary.special.items()}
    if spelling is None or parsed is None or any(n and n not in ids for n, _ in parsed.files):
        return text
    parts: list[str | int] = list(vocabulary.bos_ids)
    for name, part in parsed.files:
        parts += [ids[name], part] if name else [part]
    sentinels = dict(zip("psm", spelling.sentinels, strict=True))
    for at, letter in enumerate(parsed.order or "P"):
        if letter == "S":
            parts.append(parsed.suffix)
        elif letter == "P":
            # The implied space belongs to the prefix where that follows a sentinel of its own.
            own = parsed.order[at - 1 : at] == "p"
            parts.append((vocabulary.implied_prefix.decode() if own else "") + parsed.prefix)
        elif (sentinel := sentinels[letter]) is not None:
            parts.append(ids[sentinel])
    return [part for part in parts if part != ""]


def edit_format(text: str) -> _EditFormat | None:
    """Return the format of a prompt that asks for a region anew, if a text is one."""
    text = _without_start(text)
    return next((one for one in _EDIT_FORMATS if one.pattern.match(text)), None)


#: Control tokens that come before parts of a text, each with its part; the first may be "".
Files = tuple[tuple[str, str], ...]

#: The orders in which a template is written out: the sentinels of prefix, suffix and middle, and
#: the texts of prefix (P) and suffix (S).
_ORDERS = ("pPsSm", "psSmP", "sSpPm")


class _WrittenTemplate(NamedTuple):
    """Both sides of a template that is written out in a text.

    Attributes:
        prefix, suffix: the text on both sides.
        order: one of `_ORDERS`; "" for the last file of a repository without a template.
        files: what comes before the template: the name of a repository, and other files.
    """

    prefix: str
    suffix: str
    order: str
    files: Files = ()


def parse_template(text: str, spelling: Spelling) -> _WrittenTemplate | None:
    """Both sides of a text that is a whole template; None if it is none.

    Each sentinel of the model occurs once, in an order that there is. A start token and other files
    of the repository may come before; after these, a text without a template is read likewise.
    """
    text = _without_start(text)
    names = [name for name in spelling.in_text if name]
    first = min(text.find(name.strip()) for name in names)
    if first >= 0 and not any(text.count(name.strip()) > 1 for name in names):
        files, sides = _files(text[:first], spelling), _sides(text[first:], spelling)
        if files is not None and sides is not None:
            return sides._replace(files=files)
    files = _files(text, spelling) if text.startswith(spelling.repository) else None
    if files is None or len(files) < 2:
        return None
    name, last = files[-1]
    return _WrittenTemplate(last, "", "", (*files[:-1], (name, "")))


def _sides(text: str, spelling: Spelling) -> _WrittenTemplate | None:
    """Both sides of a text that begins with a sentinel."""
    sentinels = dict(zip("psm", spelling.in_text, strict=True))
    for order in _ORDERS:
        names = sentinels | {order[0]: sentinels[order[0]].lstrip()}
        if order.startswith("ps"):  # two sentinels share the space between them
            names["p"] = names["p"].rstrip()
        parts = (f"(?P<{at}>.*)" if at in "PS" else re.escape(names[at]) for at in order)
        if spelling.middle is None and order != "sSpPm":
            continue
        if parsed := re.fullmatch("".join(parts), text, re.DOTALL):
            return _WrittenTemplate(parsed["P"], parsed["S"], order)
    return None


#: What a file's text may have in front of the first control token: the path of the file.
_PATH = re.compile(r"[^\s<>\"'`]*[./\\][^\s<>\"'`]*\n")


def without_path(text: str) -> str:
    """Return the text of a file without its path, if it begins with one."""
    path = _PATH.match(text)
    return text[path.end() :] if path else text


def _files(text: str, spelling: Spelling) -> Files | None:
    """The files that a text consists of; None if it is no list of files.

    It begins with a control token, or with the path of a file. A control token's name in quotes, or
    between spaces, is part of a file.
    """
    if not text:
        return ()
    marks = [
        mark
        for mark in re.finditer(_any_of((*spelling.repository, *spelling.files)), text)
        if text[max(0, mark.start() - 1) : mark.start()] not in ("'", '"', "`", " ")
        or text[mark.end() : mark.end() + 1] != text[mark.start() - 1]
    ]
    if not marks or (marks[0].start() > 0 and not _PATH.match(text)):
        return None
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    first = [("", text[: marks[0].start()])] if marks[0].start() else []
    return (*first, *((m[0], text[m.end() : end]) for m, end in zip(marks, ends, strict=True)))


def _without_start(text: str) -> str:
    """A text without the start token that is written out before it."""
    return text[len(next((name for name in _STARTS if text.startswith(name)), "")) :]


def _any_of(names: Iterable[str]) -> str:
    """An expression that matches any of these names."""
    return "|".join(map(re.escape, names)) or "(?!)"
