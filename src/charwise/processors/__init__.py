"""Token healing inside other people's inference engines: one module for each engine.

They share `decision`, and through it need only `charwise.tokens` and `charwise.healing`. Each
imports its engine itself, if it needs to at all, so that nobody pays for the others.
"""
