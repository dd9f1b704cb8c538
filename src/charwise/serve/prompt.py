"""The text around the cursor, in every form of a request; and a conversation as one prompt.

Control tokens of a template become ids. Those that a user wrote into a text stay text.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from charwise.api.errors import HTTPError
from charwise.api.request import ChatRequest
from charwise.errors import reason
from charwise.healing.prompt import Files, edit_format, parse_template, without_path
from charwise.serve.task import Task
from charwise.tokens.canonical import to_bytes
from charwise.tokens.line_ends import unify
from charwise.tokens.prompts import Prompt, PromptStart, is_text, parts_of
from charwise.tokens.sentinels import REPOSITORIES, SPELLINGS, spelling_of
from charwise.tokens.utf8 import last_bytes
from charwise.tokens.vocabulary import Vocabulary

#: Where a text begins: its start; or the token ids and the suffix of what is between two sides.
Place = PromptStart | tuple[tuple[int, ...], bytes | None]


class CursorContext(NamedTuple):
    """The text on both sides of a cursor.

    Attributes:
        opening: token ids that come before, up to the last special one.
        after: None if nothing is known of the text after the cursor.
        files: whether `opening` is other files of a repository, and `cut` to fit.
    """

    opening: tuple[int, ...]
    before: bytes
    after: bytes | None
    files: bool = False
    cut: bool = False

    @property
    def prompt(self) -> Prompt:
        """The text before the cursor, as a prompt."""
        return [*self.opening, self.before] if self.opening else self.before

    @property
    def between(self) -> bool:
        """Whether there is a gap to fill in. Blank lines are no text after it: who types at the end
        of a text has not said that it ends there."""
        free = self.files or not self.opening
        return bool(self.after and self.after.strip()) and free

    def place(self, task: Task, vocabulary: Vocabulary, fills_in: bool) -> tuple[Place, bytes]:
        """Return where the text before the cursor begins, and that text.

        A prompt in its own tokens has no text left to cover.
        """
        if fills_in and self.between:
            return (self.opening, self.after), self.before
        if task.healed:
            return vocabulary.split_prompt(self.prompt)
        start, text = vocabulary.split_prompt(self.prompt if is_text(task.prompt) else task.prompt)
        return PromptStart((*start.ids, *vocabulary.encode(text)), b""), b""


def parse_prompt(task: Task, vocabulary: Vocabulary, window: int | None = None) -> CursorContext:
    """Return both sides of a cursor; a template written out in a prompt is taken apart.

    A prompt is a template only if it is one from its first character to its last, of whatever
    family, since editors write out the one that they were set to. So is a repository, whose last
    file is the one with the cursor. Of other files, and of an edit, what no window holds is left
    out.
    """
    most = sys.maxsize if window is None else window * vocabulary.max_token_bytes
    prompt, after = task.prompt, None if task.suffix is None else to_bytes(task.suffix)
    files: Files = ()
    if isinstance(prompt, str) and not after:
        if edit := edit_format(prompt):
            edit_parts = edit.parts(unify(prompt), vocabulary)
            if edit_parts is None:
                raise HTTPError(
                    400,
                    f"this prompt is for {edit.family}, and the model has no "
                    f"{', '.join(edit.required)}: set the editor to fill in the middle.",
                    "prompt",
                )
            ids = vocabulary.encode_prompt(_last_parts(edit_parts, most))
            return _after_special(ids, None, vocabulary)
        if parsed := next(filter(None, (parse_template(prompt, one) for one in SPELLINGS)), None):
            prompt, after, files = parsed.prefix, parsed.suffix.encode(), parsed.files
    parts = parts_of(prompt)
    size = sum(len(to_bytes(part)) for part in parts if not isinstance(part, int))
    gap = after is not None and after.strip()  # the text on both sides of one is cut to fit
    if task.must_fit and size > most and not gap:
        raise HTTPError(
            400,
            f"the prompt has {size} bytes, and the model's window of {window} tokens holds {most} "
            "at most. Shorten it from its start.",
        )
    if is_text(prompt):
        context = CursorContext((), to_bytes(prompt), after)
        context = _after_files(task.files, files, context, vocabulary, most)
        opening, half = context.opening, (window or sys.maxsize) // 2
        if not context.files or (lost := len(opening) - half) <= 0:
            return context
        seam = vocabulary.seam(opening, range(lost, lost + half // 4 + 1))
        return context._replace(opening=opening[seam:], cut=True)
    return _after_special(vocabulary.encode_prompt(parts), after, vocabulary)


#: How control tokens look, whatever the model: `<…>` and `[…]`; those that no other text has.
_CONTROL = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z]{3,}\]")
_SURELY = re.compile(
    r"<\|.*\|>|<\[.*\]>|<｜.*｜>|<(?=[A-Z_-]+>).+[_-](PRE|PREFIX|SUF|SUFFIX|POST|MID|MIDDLE)>"
)
_KNOWN = {name.strip("▁") for one in SPELLINGS for name in (*one.names, *one.ends)}
_KNOWN |= {"<bos>", "<eos>"}  # not `<s>`, which is HTML


def unread_tokens(task: Task, vocabulary: Vocabulary) -> list[str]:
    """Return names of control tokens that are read as text, in a prompt and around it."""
    special = {*_KNOWN, *vocabulary.special.values()}

    def names(*texts: object) -> list[str]:
        every = {name for text in texts if isinstance(text, str) for name in _CONTROL.findall(text)}
        return sorted(name for name in every if name in special or _SURELY.fullmatch(name))

    prompt, around = task.prompt, (task.suffix, *(text for _, text in task.files))
    if isinstance(prompt, str) and not task.suffix and names(prompt):
        if edit_format(prompt):
            return names(*around)
        if one := next(filter(None, (parse_template(prompt, one) for one in SPELLINGS)), None):
            return names(one.prefix, one.suffix, *(text for _, text in one.files), *around)
    return names(prompt, *around)


def _after_files(
    extra: Files, in_prompt: Files, context: CursorContext, vocabulary: Vocabulary, most: int
) -> CursorContext:
    """The context after files: behind the model's control tokens, or as text without paths."""
    files = (*extra, *in_prompt)
    if not files:
        return context
    ids = {name: id for id, name in vocabulary.special.items()}
    own = spelling_of(set(ids))
    separator = next((ids[name] for name in own.files if name in ids), None) if own else None
    if own is None or separator is None:
        texts = [text.partition("\n")[2] for _, text in extra]
        texts += [without_path(text) for name, text in in_prompt if name not in REPOSITORIES]
        return context._replace(before=unify("".join(texts)).encode() + context.before)
    repository = [ids[name] for name in own.repository if name in ids][:1]
    parts: list[str | bytes | int] = list(vocabulary.bos_ids)
    for name, text in files:
        marks = repository if name in REPOSITORIES else [separator] if name else []
        parts += [*marks, unify(text)] if marks or name not in REPOSITORIES else []
    opening = vocabulary.encode_prompt(_last_parts([part for part in parts if part != ""], most))
    return context._replace(opening=tuple(opening), files=True)


def _last_parts(parts: Sequence[str | bytes | int], most: int) -> list[str | bytes | int]:
    """The last parts of a prompt, of `most` bytes of text together: others need not be encoded."""
    last = list[str | bytes | int]()
    for part in reversed(parts):
        if most <= 0:
            break
        if not isinstance(part, int):
            raw = to_bytes(part)
            part = raw[last_bytes(raw, most) :]
            most -= len(raw)
        last.append(part)
    return last[::-1]


def _after_special(
    ids: Sequence[int], after: bytes | None, vocabulary: Vocabulary
) -> CursorContext:
    """The context of ids: the text after the last special one."""
    special = [at for at, id in enumerate(ids) if vocabulary.tokens[id] is None]
    first = special[-1] + 1 if special else 0
    opening, text = tuple(ids[:first]), vocabulary.decode(ids[first:])
    prefix = vocabulary.implied_prefix
    if not opening or (opening == vocabulary.bos_ids and text.startswith(prefix)):
        return CursorContext((), text.removeprefix(prefix), after)
    return CursorContext(opening, text, after)


def chat_prompt(chat: ChatRequest, vocabulary: Vocabulary) -> list[str | int]:
    """Return a chat as a prompt: its template's control tokens as ids, all else as text."""
    from transformers.utils.chat_template_utils import render_jinja_template  # takes half a second

    if vocabulary.chat_template is None:
        raise HTTPError(
            400,
            "this model has no chat template: send the text to /v1/completions, or serve an "
            "instruct model.",
            "messages",
        )
    messages, variables = [one.rendered for one in chat.messages], chat.chat_template_kwargs
    continued, generation = chat.continue_final_message, chat.add_generation_prompt is not False
    whole = json.dumps([messages, variables], ensure_ascii=False, default=str)
    seam = next(chr(code) for code in count(0xF0000) if chr(code) not in whole)  # for private use
    names = sorted(filter(None, vocabulary.special.values()), key=len, reverse=True)
    special = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def as_text(value: Any) -> Any:
        """A value of the client's, with the spelling of each control token broken up."""
        if isinstance(value, str):
            return special.sub(lambda name: name[0][:1] + seam + name[0][1:], value)
        if isinstance(value, Mapping):
            return {key: as_text(one) for key, one in value.items()}
        return [as_text(one) for one in value] if isinstance(value, list) else value

    values: dict[str, Any] = {
        **dict.fromkeys(("bos_token", "eos_token"), ""),
        **vocabulary.control.roles,
        **as_text(variables),
        "chat_template": vocabulary.chat_template,
        "add_generation_prompt": generation and not continued,
        "continue_final_message": continued,
        "return_assistant_tokens_mask": False,
    }
    try:
        [text], _ = render_jinja_template([as_text(messages)], **values)
    except Exception as error:  # a template is a program: it may fail in any way
        why = reason(str(error) or type(error).__name__)
        why = f"the model's chat template refuses these messages: {why}."
        raise HTTPError(400, why, "messages") from error
    return _parts(vocabulary, re.split(f"({special.pattern})", text), seam)


def _parts(vocabulary: Vocabulary, pieces: list[str], seam: str) -> list[str | int]:
    """The parts of a prompt, of texts with a control token between each two of them.

    The tokenizer of some models strips the text beside a control token, and puts a space there.
    """
    control = vocabulary.control
    ids = {name: id for id, name in vocabulary.special.items()}
    between = [None, *(ids[name] for name in pieces[1::2]), None]
    parts: list[str | int] = []
    for before, text, after in zip(between, pieces[::2], between[1:], strict=False):
        text = text.lstrip() if before in control.strip_after else text
        text = text.rstrip() if after in control.strip_before else text
        prefix = control.space_prefix if text.startswith(" ") else control.prefix
        prefix = vocabulary.implied_prefix if before is None else prefix
        parts += [] if before is None else [before]
        parts += [prefix.decode() + text.replace(seam, "")] if text else []
    return parts
