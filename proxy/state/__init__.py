"""What outlives the process: learned models, decisions, planned changes. It never decides over availability."""
