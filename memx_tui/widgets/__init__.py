"""One widget per file; widgets get data through setters and never reach the engine."""
