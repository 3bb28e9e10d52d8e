"""Figures of runs; ``batchformer.insight.figures`` says what the functions of a file are."""
