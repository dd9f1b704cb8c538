"""C(σ), all token strings that cover a text: the oracle, best first, by beam, member by member."""
