"""Causal language models of transformers."""

from charwise.engines.transformers.lm import TransformersLM, TransformersTree

__all__ = ["TransformersLM", "TransformersTree"]
