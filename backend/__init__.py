"""The bundled worker: a small inference engine with continuous batching and a paged KV cache."""
