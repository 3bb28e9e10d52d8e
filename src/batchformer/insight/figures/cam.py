"""Where a network looks for the true class (Grad-CAM), arm above arm for the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import INK, TEXT, WIDTH, bare, new_grid, shortened, write
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.networks import (
    NetworkGroup,
    TrainedNetwork,
    arrays_by_arm,
    main_arm,
)
from batchformer.insight.figures.text import number
from batchformer.insight.record import SHOTS, InsightArrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rule = Literal["seed", "change"]
Shots = Literal["many", "medium", "few"]

NAMES = (
    *("classes", "train_counts", "shot_of_class", "cam_thumbnails", "cam_heat", "cam_labels"),
    *("cam_predictions", "cam_confidence", "cam_rows", "cam_layer"),
)
A_ROW = 6  # images side by side, as many as a phone shows with their names below
MOST = 24  # images of a figure, so that a page stays small
TILE = 48  # pixels of a tile, at least: smaller images are enlarged

HEAT, MOST_OPAQUE = "inferno", 0.7
"""Colours of growing lightness, and how much of the image they hide where the heat is 1."""

LONGEST_NAME = 9


@dataclass(frozen=True)
class Picture:
    """One test image as every arm sees it."""

    name: str  # of its class
    count: int  # training images of its class
    row: int  # in the test set
    pixels: NDArray[Any]  # (h, w, 3) from 0 to 255
    heat: dict[str, NDArray[Any]]  # by arm, (a, b) from 0 to 1
    confidence: dict[str, float]  # by arm, of the true class, percent
    right: dict[str, bool]  # by arm, whether that class is the answer


@dataclass(frozen=True)
class Cams:
    """Pictures by shot group, the arms from above to below, and how they were chosen."""

    by_shots: dict[str, list[Picture]]
    arms: list[str]
    seed: int | None  # None where there is one network alone
    layer: str
    rule: Rule
    candidates: int
    grouped: bool = True  # whether there is more than one shot group of classes


def make(data: Cams) -> CaptionedFigure:
    title = "Where the network looks"
    return CaptionedFigure(title, caption(data), lambda: draw(data), (), tables(data))


def gather(
    group: NetworkGroup,
    rule: Rule = "seed",
    shots: Shots | None = None,
    images: int = A_ROW,
    arm: str | None = None,
    cam_layer: Callable[[TrainedNetwork], InsightArrays] | None = None,
) -> Cams | None:
    """What the figure shows, or None where no run kept its heat maps.

    Args:
        rule: ``seed`` takes the first images of each shot group, ``change`` those whose confidence
            changes most between the arms.
        shots: show this group alone.
        images: the number of images from each group, at most 8; at most 24 from one group alone.
        arm: the arm below the reference; by default batchformer, else the first other with heat
            maps.
        cam_layer: makes the heat maps of a network at another layer than the one kept.
    """
    most = MOST if shots else MOST // len(SHOTS)
    if not 1 <= images <= most:
        of = f"the group {shots}" if shots else f"each shot group, or {MOST} of one alone"
        raise ValueError(f"A figure holds 1 to {most} images of {of}, not {images}.")
    found = arrays_by_arm(group, *NAMES)
    others = [name for name in found if name != group.reference]
    other = arm or main_arm(others)
    if not found or (arm is not None and arm not in found):
        return None
    arms = [name for name in dict.fromkeys((group.reference, other)) if name in found]
    seed = _common_seed([found[name] for name in arms])
    if seed is None:
        arms = arms[-1:]
        seed = min(found[arms[0]])
    runs = {name: found[name][seed] for name in arms}
    if cam_layer is not None:
        networks = {run.arm: run for run in group.runs if run.seed == seed}
        runs = {name: {**run, **cam_layer(networks[name])} for name, run in runs.items()}
    first = runs[arms[0]]
    group_of = first["shot_of_class"][first["cam_labels"]]
    change = np.abs(runs[arms[-1]]["cam_confidence"] - first["cam_confidence"])
    if rule == "change" and len(arms) < 2:
        raise ValueError("The change of a confidence needs two arms that saw the same images.")
    order = np.argsort(-change, kind="stable") if rule == "change" else np.arange(len(change))
    by_shots = {}
    for i, name in enumerate(SHOTS):
        chosen = [int(m) for m in order if group_of[m] == i][:images]
        if chosen and shots in (None, name):
            by_shots[name] = [_picture(runs, m) for m in chosen]
    if not by_shots:
        return None
    grouped = len(np.unique(first["shot_of_class"])) > 1
    named = seed if len(group.runs) > 1 else None
    return Cams(by_shots, arms, named, str(first["cam_layer"]), rule, len(change), grouped)


def _common_seed(runs: Sequence[dict[int, InsightArrays]]) -> int | None:
    """The first seed whose runs looked at the same images."""
    for seed in sorted(set.intersection(*map(set, runs))):
        rows = [one[seed]["cam_rows"] for one in runs]
        if all(np.array_equal(rows[0], other) for other in rows):
            return seed
    return None


def _picture(runs: dict[str, InsightArrays], m: int) -> Picture:
    first = next(iter(runs.values()))
    label = int(first["cam_labels"][m])
    return Picture(
        str(first["classes"][label]),
        int(first["train_counts"][label]),
        int(first["cam_rows"][m]),
        first["cam_thumbnails"][m],
        {arm: run["cam_heat"][m].astype(np.float64) for arm, run in runs.items()},
        {arm: 100 * float(run["cam_confidence"][m]) for arm, run in runs.items()},
        {arm: int(run["cam_predictions"][m]) == label for arm, run in runs.items()},
    )


def draw(data: Cams) -> Figure:
    """Draw each shot group: its name if there are several, its images, then a row for each arm."""
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
        high, wide = (0.47 * side / max(pixels.shape[:2]) for side in pixels.shape[:2])
        for row, (tile, text) in enumerate(zip(tiles, below, strict=True)):
            top = row * pitch
            x, y = column + 0.5, top + 0.5
            extent = (x - wide, x + wide, y + high, y - high)
            axes.imshow(tile, extent=extent, interpolation="none")
            write(axes, x, top + 1.0, text, ha="center", va="top")
    for row, label in enumerate(["image", *arms]):
        lines = label.replace("_", "\n", 1)
        style: Any = {"rotation": 90, "ha": "right", "va": "center", "linespacing": 0.95}
        write(axes, -0.05, row * pitch + 0.5, lines, **style)
    axes.set_title(heading, loc="left", fontsize=TEXT, color=INK)
    axes.set_xlim(-0.4, A_ROW)
    axes.set_ylim((1 + len(arms)) * pitch, 0)
    axes.set_aspect("equal")


def _mark(picture: Picture, arm: str) -> str:
    return f"{picture.confidence[arm]:.0f}% {'✓' if picture.right[arm] else '✗'}"


def overlay(pixels: NDArray[Any], heat: NDArray[Any]) -> NDArray[Any]:
    """Blend the image (h, w, 3) with its heat (a, b): the hotter, the more opaque."""
    from matplotlib import colormaps

    cells = torch.from_numpy(heat)[None, None]
    heat = F.interpolate(cells, pixels.shape[:2], mode="bilinear")[0, 0].numpy()
    colour = 255 * colormaps[HEAT](heat)[..., :3]
    opaque = MOST_OPAQUE * heat[..., None]
    mixed: NDArray[Any] = np.rint((1 - opaque) * pixels + opaque * colour).astype(np.uint8)
    return mixed


def enlarged(pixels: NDArray[Any]) -> NDArray[Any]:
    """Repeat pixels so that the image is at least ``TILE`` wide or high."""
    times = max(1, -(-TILE // max(pixels.shape[:2])))
    return pixels.repeat(times, 0).repeat(times, 1)


def caption(data: Cams) -> Caption:
    pictures = [picture for group in data.by_shots.values() for picture in group]
    chosen = (
        f"the first{' of each shot group' if data.grouped else ''} among {data.candidates} drawn "
        f"once with a fixed seed"
        if data.rule == "seed"
        else f"{'of each shot group ' if data.grouped else ''}those of {data.candidates} whose "
        f"confidence of the true class changes most between the arms"
    )
    seed = "" if data.seed is None else f", seed {data.seed}"
    note = (
        f"Grad-CAM of the plain network for the true class at {data.layer}{seed}: "
        f"bright pixels speak for that class. Below each image: the confidence of the true class, "
        f"and whether the answer is right."
    )
    means = "; ".join(
        f"{arm} {number(np.mean([p.confidence[arm] for p in pictures]).item(), 1)}%"
        for arm in data.arms
    )
    details = f"{len(pictures)} test images, {chosen}. Mean confidence: {means}."
    return Caption.of("Images with heat maps.", note, details)


def tables(data: Cams) -> list[FigureTable]:
    rows = [
        (
            shots if data.grouped else "",
            *(picture.name, f"{picture.count:,}", str(picture.row)),
            *(
                f"{number(picture.confidence[arm], 1)} {'right' if picture.right[arm] else 'wrong'}"
                for arm in data.arms
            ),
        )
        for shots, pictures in data.by_shots.items()
        for picture in pictures
    ]
    columns = ("shots", "class", "images", "test row", *data.arms)
    return [FigureTable("Confidence of the true class, %", columns, rows)]
