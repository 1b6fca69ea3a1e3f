"""Reading checkpoints: Hugging Face directories and GGUF files."""
