"""Running handlers: what they return, how many run, how fast, and in which order."""
