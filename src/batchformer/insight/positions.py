"""Which patches of which images attend to one another: BatchFormer inside a network."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.cam import token_grid
from batchformer.insight.figures.canvas import INK, SMALL, WIDTH, bare, new_grid, title
from batchformer.insight.files import write_atomically
from batchformer.insight.images import stretched_thumbnails
from batchformer.insight.page.explorer import data_uri, packed, page_file, policy_of
from batchformer.insight.page.html import path_of_page, rendered
from batchformer.nn.arguments import a_model
from batchformer.nn.module import BatchFormer, without_exchange
from batchformer.nn.streams import leaves
from batchformer.plug.example import fit_batch
from batchformer.plug.insertion import RECORD, Attachment, unwrap
from batchformer.plug.preserve import preserve_state, temporary_hooks

SHOWN, SIDE = 5, 96  # most images down and across the figure, and most pixels of one
ON_PAGE = 24  # images on a page


@dataclass(frozen=True, eq=False)
class PositionAttention:
    """The attention of one place in one batch of N images.

    Attributes:
        place: the module that BatchFormer stands before.
        weights: (heads, L, N, N), mean over layers: what image i, in the row, gives to image j at
            position l. Rows sum to one.
        grid: (h, w) of the patches or pixels, which come row by row; None if they form no such
            grid, for example the several levels of a Deformable DETR.
        prefix: positions before the grid, such as the class token.
        images: (N, height, width, 3) uint8, small.
    """

    place: str
    weights: Tensor = field(repr=False)
    grid: tuple[int, int] | None
    prefix: int
    images: Tensor = field(repr=False)

    def maps(self) -> Tensor:
        """What image i gives to image j at each patch, mean over heads: (N, N, h, w).

        The values at a patch sum to one over j. Uniform attention gives 1 / N at every patch.
        """
        if self.grid is None:
            raise ValueError(
                f"The {self.weights.shape[1]} positions at {self.place!r} form no grid of the "
                f"image's shape. Read .weights (heads, L, N, N)."
            )
        patches = self.weights.mean(0)[self.prefix :]
        return patches.permute(1, 2, 0).reshape(*patches.shape[1:], *self.grid)

    def _darkest(self, shown: Tensor) -> float:
        """The share that is drawn in full red: the largest shown, but at least four times 1 / N.

        So uniform attention leaves the images visible and does not look strong.
        """
        return min(1.0, max(float(shown.max()), 4 / len(self.images)))

    def figure(self, path: str | Path) -> Path:
        """Draw the maps: each row shows an image, then what it gives to the patches of each image.

        The suffix of the file sets the format; without a suffix it is PNG.
        """
        maps = self.maps()
        count = min(len(maps), SHOWN)
        darkest = self._darkest(maps[:count, :count])
        cell = WIDTH / (count + 1) * self.images.shape[1] / self.images.shape[2]
        drawn, grid = new_grid(count, count + 1, [cell] * count)
        image: Any = None
        for i, row in enumerate(grid):
            for j, axes in enumerate(row):
                bare(axes)
                shown = self.images[i if j == 0 else j - 1].numpy()
                if not j:
                    axes.imshow(shown)
                    continue
                # A pale image, so that red stands for attention alone.
                axes.imshow(130 + shown.mean(-1) / 2, cmap="gray", vmin=0, vmax=255)
                extent = (-0.5, shown.shape[1] - 0.5, shown.shape[0] - 0.5, -0.5)
                options: Any = {"extent": extent, "vmin": 0, "vmax": darkest, "alpha": 0.7}
                image = axes.imshow(maps[i, j - 1].numpy(), cmap="Reds", **options)
        title(grid[0][0], "image")
        title(grid[0][1], "gives to")
        bar = drawn.colorbar(image, ax=[axes for row in grid for axes in row], shrink=0.6)
        even = 1 / len(maps)
        ticks = {even: "even", darkest: f"{darkest:.0%}"}
        if even > 0.1 * darkest:  # otherwise the labels would overlap
            ticks[0.0] = "0"
        bar.set_ticks(list(ticks), labels=list(ticks.values()))
        bar.ax.tick_params(labelsize=SMALL, colors=INK)
        bar.outline.set(edgecolor=INK, linewidth=0.5)
        target, buffer = Path(path), io.BytesIO()
        drawn.savefig(buffer, format=target.suffix[1:] or "png")
        write_atomically(target, buffer.getvalue())
        return target

    def page(self, path: str | Path) -> Path:
        """Write a web page: click a patch to see what it gives to that patch of each image."""
        target = path_of_page(path)
        count = min(len(self.images), ON_PAGE)
        maps = self.maps()[:count, :count]
        rows, columns = maps.shape[2:]
        script = page_file("positions.js")
        _, height, width, _ = self.images.shape
        page = rendered(
            "positions.html.jinja",
            title="Which patches attend to which",
            place=self.place,
            images=[data_uri(image.numpy()) for image in self.images[:count]],
            all=len(self.images),
            even=f"{1 / len(self.images):.1%}",
            height=height,
            width=width,
            data={
                "rows": rows,
                "columns": columns,
                "darkest": self._darkest(maps),
                "maps": packed(maps.numpy(), "f4"),
            },
            script=script,
            policy=policy_of(script),
        )
        write_atomically(target, page.encode())
        return target


def look_at_positions(model: nn.Module, batch: Any) -> list[PositionAttention]:
    """Measure which images attend to which, at each place and at each position there.

    The model is left as it was. There is no dropout, and BatchNorm uses its running statistics.

    Args:
        model: a model with BatchFormer attached, or one whose own code calls BatchFormer.
        batch: images ``(N, channels, H, W)``, or what the model is called with: a tuple of
            arguments, or a dict of keywords. Labels that the model does not take are left out.

    Raises:
        ValueError: the model has no BatchFormer, or the batch has no images.
    """
    a_model("look_at_positions()", model)
    inner = unwrap(model)
    call = fit_batch(inner, batch)
    named = [(name, m) for name, m in inner.named_modules() if isinstance(m, BatchFormer)]
    tensors = [t for _, t in leaves((call.args, call.kwargs)) if isinstance(t, Tensor)]
    images = next((t for t in tensors if t.ndim == 4 and t.is_floating_point()), None)
    if not named or images is None:
        raise ValueError(
            "look_at_positions() needs a model with BatchFormer, attach(model, at=...), and a "
            "batch with images (N, channels, H, W)."
        )
    calls: list[tuple[str, BatchFormer, Tensor, Tensor | None]] = []

    def note(name: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.append((name, module, args[0], kwargs.get("visible")))

        return hook

    with preserve_state(inner), without_exchange(inner), torch.no_grad():
        inner.eval()
        for _, encoder in named:
            encoder.training, encoder.dropout = True, 0.0
        hooks = (m.register_forward_pre_hook(note(name), with_kwargs=True) for name, m in named)
        with temporary_hooks(hooks):
            call.run(inner)
        record: Attachment | None = inner.__dict__.get(RECORD)
        places = [name.removesuffix(".batchformer") for name, *_ in calls]
        if record is not None and len(record.places) == len(calls):
            places = list(record.places)  # one encoder may stand at several places
        small = stretched_thumbnails(images, SIDE)
        found = []
        for place, (_, encoder, x, visible) in zip(places, calls, strict=True):
            _, weights = encoder.mix(x, return_weights=True, visible=visible)
            shape = _position_axes(x, encoder)
            size = images.shape[-2:]
            prefix, grid = (0, shape) if len(shape) == 2 else token_grid(math.prod(shape), size)
            means = weights.mean(0).movedim(1, 0).cpu()
            found.append(PositionAttention(place, means, grid, prefix, small))
    return found


def _position_axes(x: Tensor, encoder: BatchFormer) -> tuple[int, ...]:
    taken = {axis % x.ndim for axis in encoder._axes(x)}
    return tuple(size for number, size in enumerate(x.shape) if number not in taken)
