"""The mathematics: attention over samples, the encoder, its module, the two streams, and ranks."""
