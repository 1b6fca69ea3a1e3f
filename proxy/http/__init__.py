"""HTTP/1.1 of the client's side: connections, heads, bodies, tunnels. Knows no request of a pool."""
