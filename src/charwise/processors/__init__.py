"""Token healing inside other people's inference engines: one module for each engine.

They need only `charwise.vocabulary`, `charwise.index` and `charwise.healing`, and each imports
its engine itself, so that nobody pays for the others.
"""
