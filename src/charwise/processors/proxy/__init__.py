"""Token healing in front of other people's servers: an HTTP proxy, `charwise heal-proxy`."""
