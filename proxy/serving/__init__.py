"""One request's life, from its head to the last byte of its answer."""
