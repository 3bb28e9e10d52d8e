"""A run and its folder: built, trained, compared, swept, submitted and loaded again."""
