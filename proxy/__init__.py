"""The data plane and its front door: HTTP, wire formats, queue, batcher, upstreams, admin API."""
