"""Contrast of colours by WCAG 2."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb


def linear(colour: str) -> list[float]:
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]


def luminance(colour: str) -> float:
    return float(np.dot(linear(colour), [0.2126, 0.7152, 0.0722]))


def contrast(left: str, right: str) -> float:
    low, high = sorted([luminance(left), luminance(right)])
    return (high + 0.05) / (low + 0.05)
