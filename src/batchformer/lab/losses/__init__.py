"""Losses, one family per file: pure functions, and thin modules where a loss has state."""
