"""Tests that take minutes: random kills, memory of a long run, a full disk, and two nodes."""
