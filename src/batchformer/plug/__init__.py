"""One line in, the proof that it acts, one line out."""
