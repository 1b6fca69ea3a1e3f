"""Several processes on one port: a supervisor that leads, and workers that serve (`trimtab serve --workers N`)."""
