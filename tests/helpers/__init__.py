"""What tests of several folders share, by what it makes."""
