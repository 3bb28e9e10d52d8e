"""Batches, each a function of the step."""
