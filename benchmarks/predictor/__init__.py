"""The output-length predictor on public data: `python -m benchmarks.predictor`."""
