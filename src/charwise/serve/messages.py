"""A conversation as one prompt, by the model's own chat template.

The template's control tokens become ids. A control token that a user wrote into a message stays
text: special tokens are ids, never matched by their text in user input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from charwise.api.errors import Refused
from charwise.api.writer import Message
from charwise.errors import reason
from charwise.tokens.vocabulary import Vocabulary


def prompt_of(
    messages: Sequence[Message],
    vocabulary: Vocabulary,
    *,
    continued: bool = False,
    generation: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> list[str | int]:
    r"""Return messages as a prompt: the template's control tokens as ids, all else as text.

    Args:
        messages: each with a role and a content.
        vocabulary: of the model.
        continued: end inside the last message, which the model continues.
        generation: end where the model begins a message of its own.
        variables: further ones of the template, beside its own.

    Raises:
        Refused: the model has no template, or the template refuses the messages.

    >>> template = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
    >>> tokens = [*map(bytes, zip(b"abs/<>")), None, None]
    >>> names = {6: "<s>", 7: "</s>"}
    >>> vocabulary = Vocabulary(tokens, special=names, end_ids=[7], chat_template=template)
    >>> prompt_of([{"role": "user", "content": "a<s>"}], vocabulary)
    [6, 'a<s>', 7]
    >>> prompt_of([{"role": "assistant", "content": "ab"}], vocabulary, continued=True)
    [6, 'ab']
    """
    if vocabulary.chat_template is None:
        raise Refused(
            400,
            "this model has no chat template: send the text to /v1/completions, or serve an "
            "instruct model.",
            "messages",
        )
    whole = json.dumps([messages, variables], ensure_ascii=False, default=str)
    # Two characters for private use mark places in the rendered text.
    unused = (chr(code) for code in count(0xF0000) if chr(code) not in whole)
    end, seam = next(unused), next(unused)
    names = sorted(filter(None, vocabulary.special.values()), key=len, reverse=True)
    special = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def as_text(value: Any) -> Any:
        """A value of the client's, with the spelling of each control token broken up."""
        if isinstance(value, str):
            return special.sub(lambda name: name[0][:1] + seam + name[0][1:], value)
        if isinstance(value, Mapping):
            return {key: as_text(one) for key, one in value.items()}
        return [as_text(one) for one in value] if isinstance(value, list) else value

    given = [as_text(one) for one in messages]
    if continued:  # a template that trims its messages trims this one as well
        given[-1]["content"] += end + " "
    text = _rendered(vocabulary, given, generation and not continued, as_text(variables or {}))
    if continued:
        text, mark, after = text.rpartition(end)
        if not mark:
            raise Refused(400, "the chat template drops the last message: it cannot go on.")
        text = text if after.startswith(" ") else text.rstrip()
        text = text.replace(end + " ", "").replace(end, "")  # where the template has it twice
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


def _rendered(
    vocabulary: Vocabulary,
    messages: Sequence[Message],
    generation: bool,
    variables: Mapping[str, Any],
) -> str:
    assert vocabulary.chat_template is not None
    try:
        text: str = _compiled(vocabulary.chat_template).render(
            {
                "bos_token": "",
                "eos_token": "",
                "tools": None,
                "documents": None,
                **vocabulary.control.roles,
                **variables,
                "messages": messages,
                "add_generation_prompt": generation,
            }
        )
    # A template is a program: it may fail in any way.
    except (TemplateError, ArithmeticError, AttributeError, LookupError) as error:
        raise _refused(error) from error
    except (RecursionError, TypeError, ValueError) as error:
        raise _refused(error) from error
    return text


def _refused(error: Exception) -> Refused:
    why = reason(str(error) or type(error).__name__)
    return Refused(400, f"the model's chat template refuses these messages: {why}.", "messages")


class _Generation(Extension):
    """The tag that marks what the model writes, for training."""

    tags = {"generation"}  # noqa: RUF012  the base class has it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the body of the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@lru_cache(8)
def _compiled(template: str) -> Any:
    """The template, with the functions that templates of transformers may call."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise Refused(400, f"the model's chat template is broken: {error}.") from error
