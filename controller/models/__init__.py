"""What is believed of an upstream: how long batches, sequences, prefills and first tokens take."""
