"""The worker's HTTP front: OpenAI-compatible requests in, engine requests out."""
