"""The engine beside its peers, and what its own Python costs."""
