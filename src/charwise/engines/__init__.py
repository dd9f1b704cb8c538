"""Adapters from inference engines to `charwise.engine.TokenLM`, one thin module each.

Import the one you need: none is imported here, so that none is paid for unasked.
"""
