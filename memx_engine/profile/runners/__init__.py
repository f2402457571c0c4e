"""The places where a probe can run; each decides that and nothing else."""
