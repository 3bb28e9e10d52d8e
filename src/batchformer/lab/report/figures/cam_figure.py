"""Images under their heat maps, laid out by shot group and arm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.lab.report.figures.cam import A_ROW, Cams, Picture
from batchformer.lab.report.figures.canvas import INK, TEXT, WIDTH
from batchformer.lab.report.figures.panels import SMALL, bare, new_grid, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TILE = 48
"""Pixels of a tile, at least: smaller images are enlarged."""

HEAT, MOST_OPAQUE = "inferno", 0.7
"""Colours of growing lightness, and how much of the image they hide where the heat is 1."""

LONGEST_NAME = 9


def overlay(pixels: NDArray[Any], heat: NDArray[Any]) -> NDArray[Any]:
    """The image (h, w, 3) under its heat (a, b), which is widened to it; the hotter, the denser."""
    from matplotlib import colormaps

    wide = widened(heat, pixels.shape[:2])[..., None]
    colour = 255 * colormaps[HEAT](wide[..., 0])[..., :3]
    opaque = MOST_OPAQUE * wide
    mixed: NDArray[Any] = np.rint((1 - opaque) * pixels + opaque * colour).astype(np.uint8)
    return mixed


def widened(heat: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """(a, b) to (h, w) by lines between the centres of its cells."""
    for axis, wanted in enumerate(size):
        have = heat.shape[axis]
        places = (np.arange(wanted) + 0.5) * have / wanted - 0.5
        lines = np.moveaxis(heat, axis, -1).reshape(-1, have)
        wide = np.stack([np.interp(places, np.arange(have), line) for line in lines])
        heat = np.moveaxis(wide.reshape(*np.delete(heat.shape, axis), wanted), -1, axis)
    return heat


def enlarged(pixels: NDArray[Any]) -> NDArray[Any]:
    """Every pixel a square, so that the image has at least ``TILE``."""
    times = max(1, -(-TILE // max(pixels.shape[:2])))
    return pixels.repeat(times, 0).repeat(times, 1)


def figure(data: Cams) -> Figure:
    """Of every shot group the images, then a row for each arm; one group alone has no name."""
    blocks = [
        (name, pictures[i : i + A_ROW])
        for name, pictures in data.by_shots.items()
        for i in range(0, len(pictures), A_ROW)
    ]
    rows = 1 + len(data.arms)
    tile = (WIDTH - 0.45) / A_ROW
    heights = [rows * (tile + 0.18) + 0.1] * len(blocks)
    drawn, grid = new_grid(len(blocks), 1, heights)
    for (axes,), (name, pictures) in zip(grid, blocks, strict=True):
        _block(axes, f"{name} shots" if data.grouped else "", pictures, data.arms)
    return drawn


def _block(axes: Axes, heading: str, pictures: list[Picture], arms: list[str]) -> None:
    bare(axes)
    pitch = 1.26  # a tile and the line below it
    for column, picture in enumerate(pictures):
        pixels = enlarged(picture.pixels)
        tiles = [pixels, *(overlay(pixels, picture.heat[arm]) for arm in arms)]
        below = [shortened(picture.name, LONGEST_NAME), *(_mark(picture, arm) for arm in arms)]
        for row, (tile, text) in enumerate(zip(tiles, below, strict=True)):
            top = row * pitch
            axes.imshow(
                tile,
                extent=(column + 0.03, column + 0.97, top + 0.97, top + 0.03),
                interpolation="none",
            )
            axes.text(
                column + 0.5,
                top + 1.0,
                text,
                fontsize=SMALL,
                color=INK,
                ha="center",
                va="top",
                parse_math=False,
            )
    for row, label in enumerate(["image", *arms]):
        axes.text(
            -0.05,
            row * pitch + 0.5,
            label.replace("_", "\n", 1),
            fontsize=SMALL,
            color=INK,
            rotation=90,
            ha="right",
            va="center",
            linespacing=0.95,
        )
    axes.set_title(heading, loc="left", fontsize=TEXT, color=INK)
    axes.set_xlim(-0.4, A_ROW)
    axes.set_ylim((1 + len(arms)) * pitch, 0)
    axes.set_aspect("equal")


def _mark(picture: Picture, arm: str) -> str:
    return f"{picture.confidence[arm]:.0f}% {'✓' if picture.right[arm] else '✗'}"
