"""The self-contained page of one network, and what other pages share with it."""
