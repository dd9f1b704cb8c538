"""Token healing before any server: one row of `servers.SERVERS` for each kind."""
