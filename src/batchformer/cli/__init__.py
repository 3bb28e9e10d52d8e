"""The commands of the command line, by what a person wants: to train, to look, to know."""
