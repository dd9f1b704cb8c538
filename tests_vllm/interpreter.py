"""Import this before vLLM, and its V2 model runner works on a CPU.

That runner needs Triton, whose kernels need a GPU. Triton has an interpreter, which runs the same
kernels on the CPU, slowly; vLLM looks for a "cpu" backend of Triton before it believes that.
"""

import os

from conftest import ENVIRONMENT

os.environ.update(ENVIRONMENT | {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"})

from triton.backends import Backend, backends


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return False


backends["cpu"] = Backend(compiler=backends["nvidia"].compiler, driver=_Driver)

# vLLM has masks of integers, which Triton's compiler takes and its interpreter does not.
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402


def _with_bool_mask(name: str, position: int) -> None:
    call = getattr(InterpreterBuilder, name)

    def patched(self, *args):
        args = list(args)
        mask = args[position]
        args[position] = TensorHandle(mask.data.astype(bool), mask.dtype)
        return call(self, *args)

    setattr(InterpreterBuilder, name, patched)


_with_bool_mask("create_masked_load", 1)
_with_bool_mask("create_masked_store", 2)
