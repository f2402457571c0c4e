"""One screen or dialog per file."""
