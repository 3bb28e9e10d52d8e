"""The module: in training each sample attends to the others of its batch, in eval to nobody."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from batchformer.nn.attention import Attend
from batchformer.nn.encoder import (
    EncoderLayer,
    EncoderWeights,
    default_channel_axis,
    encode,
    meet_all,
)
from batchformer.nn.exchange import AllRows, group_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class _Group:
    """A process group that copies of a module share; it cannot be copied or written to a file."""

    def __init__(self, members: Any) -> None:
        self.members = members

    def __deepcopy__(self, memo: dict[int, Any]) -> _Group:
        return self

    def __reduce__(self) -> Any:
        if self.members is not None:
            raise TypeError(
                "A BatchFormer that exchanges within a process group cannot be pickled, because a "
                "group exists in its processes only. Save its state_dict()."
            )
        return _Group, (None,)


class BatchFormer(nn.Module):
    """Transformer encoder over the batch axis in training, the identity in eval.

    The layers are ``nn.TransformerEncoderLayer`` objects (feed-forward width ``dim``, ReLU,
    post-norm, no position code) with a forward of ours, so state dicts of stock layers load here
    and ours there. They are called as modules; of their parts see
    :class:`~batchformer.nn.encoder.EncoderLayer`.

    Args:
        dim: channels C of the features.
        heads: attention heads; must divide ``dim``.
        layers: stacked encoder layers, each with its own initial weights.
        dropout: probability, in the four places of the stock layer.
        attend: ``"batch"``, or ``"self"``: the control that masks attention to the diagonal, with
            the same parameters and the same dropout, in which no sample sees another.
        batch_axis: the axis of the samples; 1 for ``(L, N, C)``.
        channel_axis: the axis of the channels; by default the last for up to three axes and axis 1
            beyond; -1 for channels-last images.
        bottleneck: channels of the encoder, if fewer than C: features are projected down to them by
            a linear layer, encoded, projected up by another and added to the features. Both layers
            have torch's own initial weights.
        exchange: in training with several ranks, attend to the samples of all; with a process group
            (or a mesh of one dimension) to those of its ranks: under tensor parallelism, where some
            ranks hold the same samples, pass the data-parallel group. Each rank computes
            its own rows, to which mixed rows and labels belong; only keys and values travel, in
            each layer 2 C times the bytes of a number for each row of the other ranks, and as many
            gradients back (``batchformer bench exchange`` counts them). Outputs, and gradients
            once DDP has averaged them, are those of one process with all rows: where ranks differ
            in their number of rows, with the loss of ``stream_loss(..., exchange=True)``. Every
            rank has to call the module as often as the others, with no row if it has none, and its
            loss has to depend on its outputs. Dropout is then a function of a seed, which rank 0
            draws from torch's generator of the device for each call, and of the number of the row
            among all: its masks do not depend on how many ranks there are, and differ from those
            of ``exchange=False``.
        copy_layers: start all layers from the weights of the first, as ``nn.TransformerEncoder``
            does, and with it the paper's released code. Each is trained on its own.

    >>> encoder = BatchFormer(8)
    >>> x = torch.randn(5, 8)
    >>> torch.equal(encoder.eval()(x), x)
    True
    >>> torch.equal(encoder.train()(x), x)
    False
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        layers: int = 1,
        dropout: float = 0.5,
        *,
        attend: Attend = "batch",
        batch_axis: int = 0,
        channel_axis: int | None = None,
        bottleneck: int | None = None,
        exchange: bool | ProcessGroup | DeviceMesh = False,
        copy_layers: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"BatchFormer: needs at least one head, got heads={heads}.")
        width = dim if bottleneck is None else bottleneck
        if width < 1:
            raise ValueError(f"BatchFormer: needs at least one channel, got {width}.")
        if width % heads:
            fitting = ", ".join(str(h) for h in range(1, min(width, 64) + 1) if width % h == 0)
            raise ValueError(
                f"BatchFormer: {heads} heads do not divide dim={width}; use heads= one of "
                f"{fitting}."
            )
        if attend not in ("batch", "self"):
            raise ValueError(f"BatchFormer: attend={attend!r} is neither 'batch' nor 'self'.")
        if layers < 1 or not 0.0 <= dropout < 1.0:
            raise ValueError(
                f"BatchFormer: needs layers >= 1 and 0 <= dropout < 1, got {layers} and {dropout}."
            )
        self.dim, self.heads, self.dropout, self.attend = dim, heads, dropout, attend
        self.batch_axis, self.channel_axis = batch_axis, channel_axis
        self.exchange = exchange is not False
        self._group = _Group(group_of(exchange))
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, width, dropout, device=device, dtype=dtype)
            for _ in range(layers)
        )
        if copy_layers:
            for layer in self.layers[1:]:
                layer.load_state_dict(self.layers[0].state_dict())
        self.down: nn.Linear | None = None
        self.up: nn.Linear | None = None
        if bottleneck is not None:
            self.down = nn.Linear(dim, width, device=device, dtype=dtype)
            self.up = nn.Linear(width, dim, device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_accept_single_layer)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """Mixed samples in training, ``x`` itself in eval; shapes as in :func:`batch_former`."""
        if not self.training:
            return x
        self._check_layout(x)
        rows = self._meet(x, self.dropout) if self.exchange else None
        if (x.shape[self.batch_axis] if rows is None else rows.total) <= 1:
            _warn_of_single_sample()
            return _identity_with_zero_gradients(x, self.parameters())
        return self._encode(x, self.dropout, rows)[0]

    @overload
    def mix(
        self, x: Tensor, *, dropout: float = ..., return_weights: Literal[False] = ...
    ) -> Tensor: ...
    @overload
    def mix(
        self, x: Tensor, *, dropout: float = ..., return_weights: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...
    def mix(
        self, x: Tensor, *, dropout: float = 0.0, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the encoder whatever the mode; deterministic unless ``dropout`` is given.

        In eval it never exchanges: one rank may look at its own samples.
        """
        self._check_layout(x)
        exchange = self.exchange and self.training
        rows = self._meet(x, dropout) if exchange else None
        mixed, weights = self._encode(x, dropout, rows, return_weights)
        return (mixed, torch.stack(weights)) if return_weights else mixed

    def _encode(
        self,
        x: Tensor,
        dropout: float,
        rows: AllRows | None,
        return_weights: bool = False,
        visible: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        # A stock layer that somebody put in place of ours has a forward of another kind.
        stock = nn.TransformerEncoderLayer
        layers: list[Any] = [EncoderWeights.of(m) if type(m) is stock else m for m in self.layers]
        axes = self._axes(x)
        mixed, weights = encode(
            x if self.down is None else _on_axis(self.down, x, axes[1]),
            layers,
            axes,
            heads=self.heads,
            dropout=dropout,
            attend=self.attend,
            return_weights=return_weights,
            rows=rows,
            visible=visible,
        )
        if self.up is not None:
            mixed = (x + _on_axis(self.up, mixed, axes[1])).to(x.dtype)
        return mixed, weights

    def _meet(self, x: Tensor, dropout: float) -> AllRows:
        return meet_all(x, self._axes(x), dropout, self._group.members)

    def _axes(self, x: Tensor) -> tuple[int, int]:
        axis = self.channel_axis
        return self.batch_axis, default_channel_axis(x) if axis is None else axis

    def _check_layout(self, x: Tensor) -> None:
        _, axis = self._axes(x)
        if x.ndim < 2 or not -x.ndim <= axis < x.ndim or x.shape[axis] != self.dim:
            raise ValueError(
                f"BatchFormer(dim={self.dim}) got {tuple(x.shape)} and looks for its channels on "
                f"axis {axis}. Set channel_axis (-1 for channels-last) and batch_axis (1 for "
                f"(L, N, C)), or build it with the dim of the features."
            )

    def extra_repr(self) -> str:
        told = f"{self.dim}, heads={self.heads}, dropout={self.dropout}, attend={self.attend!r}"
        told += "" if self.down is None else f", bottleneck={self.down.out_features}"
        return f"{told}, exchange=True" if self.exchange else told


def _on_axis(linear: nn.Module, x: Tensor, axis: int) -> Tensor:
    """A linear layer over the channels on this axis."""
    out: Tensor = linear(x.movedim(axis, -1))
    return out.movedim(-1, axis)


def two_streams(x: Tensor, module: BatchFormer) -> Tensor:
    """The plain samples, then the mixed ones: ``(2N, ...)`` in training, ``x`` in eval.

    >>> two_streams(torch.randn(5, 8), BatchFormer(8)).shape
    torch.Size([10, 8])
    """
    if not module.training:
        return x
    return torch.cat((x, module(x)), dim=module.batch_axis)


def mix_second_half(x: Tensor, module: BatchFormer) -> Tensor:
    """A later insertion: ``(2N, ...)`` in, the plain half untouched, the mixed half mixed again."""
    if not module.training:
        return x
    plain, mixed = x.chunk(2, dim=module.batch_axis)
    return torch.cat((plain, module(mixed)), dim=module.batch_axis)


@contextmanager
def without_exchange(model: nn.Module) -> Iterator[None]:
    """Let every BatchFormer of a model attend within its rank, which then waits for no other."""
    encoders = [m for m in model.modules() if isinstance(m, BatchFormer) and m.exchange]
    try:
        for encoder in encoders:
            encoder.exchange = False
        yield
    finally:
        for encoder in encoders:
            encoder.exchange = True


def _identity_with_zero_gradients(x: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    # The sum of an empty slice is zero whatever the values, and its gradient is a tensor of zeros
    # rather than None: a rank with one sample does not stall the other ranks of DDP.
    nothing = torch.stack([p.flatten()[:0].sum() for p in parameters]).sum()
    return x + nothing.to(x.dtype)


_warned_of_single_sample = False


def _warn_of_single_sample() -> None:
    global _warned_of_single_sample
    if not _warned_of_single_sample:
        _warned_of_single_sample = True
        warnings.warn(
            "BatchFormer met a batch of one sample in training: there is nobody to attend to, so "
            "the mixed stream repeats the plain one. Larger batches, or drop_last=True in the "
            "DataLoader, avoid it. (Said once.)",
            stacklevel=3,
        )


# What torch.compiler.assume_constant_result sets, without importing the compiler: it then calls
# the function while it traces, so the warning is never part of a compiled region.
_warn_of_single_sample._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _accept_single_layer(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object
) -> None:
    """Let the state dict of one ``nn.TransformerEncoderLayer`` load into a one-layer module."""
    layers: Any = module.layers
    if len(layers) == 1 and f"{prefix}self_attn.in_proj_weight" in state_dict:
        for key in layers[0].state_dict():
            state_dict[f"{prefix}layers.0.{key}"] = state_dict.pop(prefix + key)


def parameter_count(module: nn.Module) -> int:
    """The number of scalars in a module's parameters."""
    return sum(math.prod(p.shape) for p in module.parameters())
