"""Networks by name with timm's contract, what methods put into them, and weights for them."""
