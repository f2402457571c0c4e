"""Judging predictions against a named ground truth: measured tables, the simulated cluster, this machine."""
