"""What takes minutes to try: kills at random moments, a long run's memory, a full disk."""
