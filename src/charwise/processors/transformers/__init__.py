"""Token healing in transformers' own `generate`."""

from charwise.processors.transformers.logits_processor import HealingLogitsProcessor

__all__ = ["HealingLogitsProcessor"]
