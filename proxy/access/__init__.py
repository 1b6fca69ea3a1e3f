"""Who may ask, as what, and how much: API keys and their limits. Knows no pool and no upstream."""
