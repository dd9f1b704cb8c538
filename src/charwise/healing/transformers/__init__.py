"""Token healing in transformers' own `generate`."""

from charwise.healing.transformers.logits_processor import HealingLogitsProcessor

__all__ = ["HealingLogitsProcessor"]
