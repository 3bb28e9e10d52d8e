"""Who helps whom: what is looked at in a trained network, for figures that need it no more."""
