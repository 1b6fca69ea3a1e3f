"""What the proxy costs, beside compiled and Python proxies in one interleaved run: `python -m benchmarks.proxy`."""
