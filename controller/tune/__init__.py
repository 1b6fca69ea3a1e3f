"""Setpoints and what changes them: pins, promises, laws and shadows, experiments, cuts that did not help."""
