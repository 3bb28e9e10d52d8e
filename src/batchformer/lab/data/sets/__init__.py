"""Data sets, one family a file."""
