"""The process itself: event loops that stand still, and what the service manager is told."""
