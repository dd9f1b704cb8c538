"""A plug-in of SGLang: the server may load charwise's logit processor, and no other code.

    CHARWISE_SGLANG_ONLY=1 python -m sglang.launch_server … --enable-custom-logit-processor

With that flag SGLang unpickles what any client sends, which runs any code (CVE-2026-7304), and in
0.5.23 it has no list of what is allowed. It does load plug-ins of installed packages, in each of
its processes, before it takes requests; this one changes the one function that unpickles. With
`CHARWISE_SGLANG_ONLY` unset it does nothing at all. If it cannot do what it is asked for, the
process ends: SGLang goes on after a plug-in that fails.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from charwise.errors import EngineError

#: Set it to 1 in the server's environment.
ONLY = "CHARWISE_SGLANG_ONLY"

_HOME = "sglang.srt.sampling.custom_logit_processor"


def restrict() -> None:
    """Let this process load charwise's processor only, if `CHARWISE_SGLANG_ONLY` is 1.

    >>> restrict()  # not asked for: nothing happens

    Raises:
        SystemExit: it was asked for, and this SGLang has not the function that it changes.
    """
    if os.environ.get(ONLY, "0") in ("", "0"):
        return
    try:
        module = import_module(_HOME)
        if not callable(module._cache_from_str):
            raise AttributeError(f"{_HOME}._cache_from_str is no function")
    except (ImportError, AttributeError) as error:
        raise SystemExit(
            f"{ONLY} is set, but charwise does not know this SGLang ({error}): clients could send "
            "it any code. Leave out --enable-custom-logit-processor, or use SGLang 0.5.23."
        ) from error
    module._cache_from_str = _allowed  # type: ignore[attr-defined]


def _allowed(text: str) -> type:
    """The class that a request asks for; nothing is unpickled.

    Args:
        text: the request's `custom_logit_processor`.

    Returns:
        Ours for our own text. For any other one that refuses its requests: an exception here would
        end the server.

    >>> from charwise.processors.sglang import HealingLogitProcessor
    >>> _allowed(HealingLogitProcessor.to_str()).__name__, _allowed("else").__name__
    ('HealingLogitProcessor', '_RefusingLogitProcessor')
    """
    from charwise.processors.sglang import HealingLogitProcessor

    return (
        HealingLogitProcessor if text == HealingLogitProcessor.to_str() else _RefusingLogitProcessor
    )


class _RefusingLogitProcessor:
    """Ends every request that it is called for, with a sentence for its client.

    SGLang shows it a request only where that has `custom_params`; others go on as if there were no
    processor.

    >>> _RefusingLogitProcessor()([0.5], [None])
    [0.5]
    """

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any] | None] | None) -> Any:
        """The logits as they are."""
        from charwise.processors.sglang import abort

        for own in custom_param_list or ():
            request = (own or {}).get("__req__")
            if request is not None:
                abort(request, EngineError("this server takes charwise's logit processor only."))
        return logits
