"""Numbers of runs and their comparison; no pictures."""
