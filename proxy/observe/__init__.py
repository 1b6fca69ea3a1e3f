"""What is counted, logged and traced of what happens. Decides nothing."""
