"""One decoder for the Llama family; the checkpoint's config.json decides what it is."""
