"""The commands: those that train, those on finished runs, those that answer questions."""
