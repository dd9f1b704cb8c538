"""GGUF models, run by llama.cpp."""

from charwise.engines.llama_cpp.lm import LlamaCppLM

__all__ = ["LlamaCppLM"]
