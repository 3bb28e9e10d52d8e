"""Settings of an experiment as typed values; nothing here needs torch."""
