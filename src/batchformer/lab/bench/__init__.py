"""Timings, measured side by side in one run: one file for each part of ``batchformer bench``."""
