"""Iteration-level scheduling over a block pool: what runs in the next step, and what came out of it."""
