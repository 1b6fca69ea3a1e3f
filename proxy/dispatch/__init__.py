"""Who goes when, and together with whom: queue, admission, gate, merging. Asks upstreams through their leases."""
