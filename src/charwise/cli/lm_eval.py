"""The command `charwise lm-eval`: lm-evaluation-harness with charwise among its models."""

from __future__ import annotations

import sys

import typer

from charwise.errors import needs

#: How the command is registered: every option is the harness's, `--help` too.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the model `charwise`.

    Every option is the harness's own: `charwise lm-eval --help` shows those of `lm_eval`.
    """
    with needs("lm-eval", "lm-evaluation-harness is not installed, or not completely"):
        from lm_eval.__main__ import cli_evaluate

        import charwise.evaluation.lm_eval  # noqa: F401 - registers the model
    sys.argv = ["charwise lm-eval", *context.args]
    cli_evaluate()
