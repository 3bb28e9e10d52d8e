"""Losses, one per file: a pure function, and a thin module where it holds state."""
