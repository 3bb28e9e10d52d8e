"""Benchmarks for those who work on this library; ``batchformer bench`` has those for its users."""
