"""Constrained output: what a request may demand of its text, and the masks that enforce it (extra `grammar`)."""
