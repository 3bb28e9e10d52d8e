"""Files on disk: where they are, lists of them, and images read from them."""
