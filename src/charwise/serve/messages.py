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

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from charwise.api.errors import Refused
from charwise.api.writer import Message
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
    whole = json.dumps(messages, ensure_ascii=False)
    # Two characters for private use mark places in the rendered text.
    unused = (chr(code) for code in count(0xF0000) if chr(code) not in whole)
    end, seam = next(unused), next(unused)
    names = sorted(filter(None, vocabulary.special.values()), key=len, reverse=True)
    special = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def kept(content: str) -> str:
        """The content, with the spelling of each control token broken up."""
        return special.sub(lambda found: found[0][:1] + seam + found[0][1:], content)

    given = [{**one, "content": kept(one["content"])} for one in messages]
    if continued:
        given[-1] = {**given[-1], "content": given[-1]["content"] + end}
    text = _rendered(vocabulary, given, generation and not continued, variables or {})
    if continued:
        text, found, _ = text.rpartition(end)
        if not found:
            raise Refused(400, "the chat template drops the last message: it cannot go on.")
    ids = {name: id for id, name in vocabulary.special.items()}
    parts = re.split(f"({special.pattern})", text)
    return [ids.get(part, part.replace(seam, "")) for part in parts if part]


def _rendered(
    vocabulary: Vocabulary,
    messages: Sequence[Message],
    generation: bool,
    variables: Mapping[str, Any],
) -> str:
    assert vocabulary.chat_template is not None
    name = vocabulary.special.get
    try:
        text: str = _compiled(vocabulary.chat_template).render(
            {
                **variables,
                "messages": messages,
                "add_generation_prompt": generation,
                "bos_token": name(vocabulary.bos_ids[0], "") if vocabulary.bos_ids else "",
                "eos_token": name(vocabulary.end_ids[0], "") if vocabulary.end_ids else "",
            }
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise Refused(
            400, f"the model's chat template refuses these messages: {error}.", "messages"
        ) from error
    return text


@lru_cache(8)
def _compiled(template: str) -> Any:
    """The template, with the functions that templates of transformers may call."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise Refused(400, f"the model's chat template is broken: {error}.") from error
