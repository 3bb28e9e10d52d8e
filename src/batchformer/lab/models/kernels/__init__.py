"""Triton kernels for one network: convolutions and normalisation of few channels."""
