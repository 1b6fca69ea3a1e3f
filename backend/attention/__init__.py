"""Paged attention: one interface, implemented in torch (CPU, reference) and in Triton (CUDA)."""
