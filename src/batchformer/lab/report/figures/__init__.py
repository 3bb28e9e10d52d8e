"""Figures of runs; ``batchformer.insight.figures`` explains the functions in a figure's file."""
