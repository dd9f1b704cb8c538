"""Token healing inside other people's inference engines: one module for each engine.

They share `decision`, and need only `charwise.tokens`, `charwise.healing` and, to heal exactly,
`charwise.boundary`. Each imports its engine itself, if it needs to at all, so that nobody pays for
the others.
"""
