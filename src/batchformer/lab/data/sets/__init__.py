"""Data sets, one file for each family."""
