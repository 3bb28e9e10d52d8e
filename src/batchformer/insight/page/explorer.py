"""Real batches to explore: who attends to whom, and whose loss has gradient on whose feature.

The page holds images and weights; ``explorer.js`` shows them. Nothing is fetched.
"""

from __future__ import annotations

import hashlib
import io
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.networks import NetworkGroup, TrainedNetwork
from batchformer.insight.optional import extra
from batchformer.insight.page.html import Section, rendered
from batchformer.insight.record import SHOTS, InsightArrays

COLUMNS = 8  # images side by side in the picture of a batch
MOST_BYTES = 1_500_000
"""The most bytes of images and weights in one explorer. If records are larger, only their first
batches are shown."""
QUALITY = 88
"""Quality of WebP: a fifth of the bytes of PNG on small photographs, with no visible difference."""


EXPLORER_DETAILS = (
    "Attention is averaged over layers; what a sample gives adds up to 100%. The gradient is the "
    "mean absolute value of the derivative of one sample's loss by another's feature, in percent "
    "of its sum over all others. Weights within 1% of one another are called alike and are not "
    "ranked."
)


@dataclass(frozen=True)
class Explorer:
    """What one explorer holds."""

    # For each arm its name, seed, heads, classes and batches, as plain values for the script
    arms: list[dict[str, Any]]
    # One picture of each batch as a data URI; arms that saw the same images share it
    sprites: list[str]
    batches: int  # how many batches the runs have kept; those of `arms` may be fewer
    grouped: bool  # whether classes belong to several shot groups, which are then named


def explorer_section(group: NetworkGroup, prefix: str) -> Section | None:
    """The explorer of every arm whose runs have kept batches; None where none has.

    ``prefix`` keeps ids unique on the page. The script runs only where the page's policy names it,
    see :func:`script_policy`.
    """
    found = explorer_of(group)
    if found is None:
        return None
    html = rendered(
        "explorer.html.jinja",
        id=f"{prefix}-explorer",
        data={"arms": found.arms, "columns": COLUMNS, "shots": SHOTS if found.grouped else ()},
        sprites=found.sprites,
        style=page_file("explorer.css"),
        script=page_file("explorer.js"),
    )
    shown = max(len(arm["batches"]) for arm in found.arms)
    # With a single network there is no arm or seed to name.
    which = [f"{arm['name']} seed {arm['seed']}" for arm in found.arms if len(group.runs) > 1]
    which += [f"the first {shown} of {found.batches}"] if shown < found.batches else []
    named = f" ({', '.join(which)})" if which else ""
    note = (
        f"Batches of test samples{named}, drawn so that classes are as frequent as in "
        f"training, as far as there are test samples, and seen without dropout."
    )
    return Section("Inside a batch", html, note, EXPLORER_DETAILS, wide=True)


def explorer_of(group: NetworkGroup) -> Explorer | None:
    """The batches of each arm's first seed that has them."""
    kept: dict[TrainedNetwork, InsightArrays] = {}
    for arm in group.arms:
        for run in group.of(arm):
            if (record := _record(run)) is not None:
                kept[run] = record
                break
    if not kept:
        return None
    arms = [_arm(run, record) for run, record in kept.items()]
    sprites: dict[str, int] = {}
    size, batches = 0, max(len(record["batch_labels"]) for record in kept.values())
    for b in range(batches):
        added = [_batch(record, b, sprites) for record in kept.values()]
        size += sum(len(batch["attention"]) + len(batch["gradient"]) for batch in added if batch)
        if b and size + sum(map(len, sprites)) > MOST_BYTES:
            break
        for arm_data, batch in zip(arms, added, strict=True):
            arm_data["batches"] += [batch] if batch else []
    used = {batch["sprite"] for arm_data in arms for batch in arm_data["batches"]}
    grouped = len({int(i) for record in kept.values() for i in record["shot_of_class"]}) > 1
    return Explorer(arms, [uri for uri, i in sprites.items() if i in used], batches, grouped)


def script_policy(sections: Iterable[Section]) -> str:
    """The part of a page's security policy that allows scripts.

    It allows the explorer's script, by its hash, if one of these sections has it; no other script
    may run.
    """
    if not any("<script" in section.html for section in sections):
        return ""
    return policy_of(page_file("explorer.js"))


def policy_of(script: str) -> str:
    """The part of a page's security policy that allows this script, by its hash."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"; script-src 'sha256-{b64encode(digest).decode()}'"


def packed(array: NDArray[Any], kind: str) -> str:
    """The numbers in base64, row by row, little-endian; ``kind`` is ``f2`` or ``f4``.

    Attention is kept in half precision, so ``f2`` loses nothing: the page ranks samples as the
    arrays do.

    >>> packed(np.ones(3), "f2")
    'ADwAPAA8'
    """
    return b64encode(array.astype(f"<{kind}").tobytes()).decode()


def sprite(thumbnails: NDArray[Any]) -> str:
    """Images (N, h, w, 3) uint8 in rows of ``COLUMNS``, as the data URI of one picture."""
    samples, high, wide, _ = thumbnails.shape
    rows = -(-samples // COLUMNS)
    full = np.zeros((rows * COLUMNS, high, wide, 3), np.uint8)
    full[:samples] = thumbnails
    tiled = full.reshape(rows, COLUMNS, high, wide, 3).swapaxes(1, 2)
    return data_uri(tiled.reshape(rows * high, COLUMNS * wide, 3))


def data_uri(pixels: NDArray[Any]) -> str:
    """An image (h, w, 3) uint8 as the data URI of a WebP picture."""
    with extra("report"):
        from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="WEBP", quality=QUALITY, method=6)
    return f"data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}"


def _record(run: TrainedNetwork) -> InsightArrays | None:
    """The arrays of a run, or None where one is missing, damaged, or does not fit the others."""
    names, attention = run.insight.get("classes"), run.insight.get("batch_attention")
    if names is None or attention is None or attention.ndim != 4 or not attention.size:
        return None
    batches, heads, samples, _ = attention.shape
    shapes = {
        "train_counts": names.shape,
        "shot_of_class": names.shape,
        "batch_labels": (batches, samples),
        "batch_predictions": (batches, samples),
        "batch_attention": (batches, heads, samples, samples),
        "batch_gradient": (batches, samples, samples),
    }
    found = {"classes": names}
    shown = "batch_captions" if "batch_captions" in run.insight else "batch_thumbnails"
    if (array := run.insight.get(shown)) is None or array.shape[:2] != (batches, samples):
        return None
    found[shown] = array
    for name, shape in shapes.items():
        array = run.insight.get(name)
        if array is None or array.shape[: len(shape)] != shape or not np.isfinite(array).all():
            return None
        found[name] = array
    occurring = np.stack([found["batch_labels"], found["batch_predictions"]])
    return found if occurring.min() >= 0 and occurring.max() < len(names) else None


def _arm(run: TrainedNetwork, record: InsightArrays) -> dict[str, Any]:
    """An arm's data without batches, with only the classes that occur."""
    occurring = np.union1d(record["batch_labels"], record["batch_predictions"])
    classes = {
        int(k): [
            str(record["classes"][k]),
            int(record["train_counts"][k]),
            int(record["shot_of_class"][k]),
        ]
        for k in occurring
    }
    heads = record["batch_attention"].shape[1]
    return {"name": run.arm, "seed": run.seed, "heads": heads, "classes": classes, "batches": []}


def _batch(record: InsightArrays, b: int, sprites: dict[str, int]) -> dict[str, Any] | None:
    """Batch ``b``; its picture is added to ``sprites``. None if the run kept fewer batches."""
    if b >= len(record["batch_labels"]):
        return None
    if "batch_captions" in record:
        shown = {"sprite": -1 - b, "captions": record["batch_captions"][b].tolist()}
    else:
        picture = sprite(record["batch_thumbnails"][b])
        shown = {"sprite": sprites.setdefault(picture, len(sprites))}
    return {
        **shown,
        "labels": record["batch_labels"][b].tolist(),
        "predictions": record["batch_predictions"][b].tolist(),
        "attention": packed(record["batch_attention"][b], "f2"),
        "gradient": packed(record["batch_gradient"][b], "f4"),
    }


def page_file(name: str) -> str:
    """The text of a file beside this one."""
    return files("batchformer.insight.page").joinpath(name).read_text(encoding="utf-8")
