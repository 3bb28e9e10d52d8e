"""Triton kernels for ResNet-32 (convolution, normalisation) and for CE-GZSL (pairs)."""
