"""What was measured: latency windows, samples, evidence, error budgets, and the statistics under them."""
