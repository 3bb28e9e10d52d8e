"""Figures of networks that were looked at: one file a figure, and what figures share."""
