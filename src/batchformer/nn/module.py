"""The module: an encoder over the batch in training, the identity in eval."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from batchformer.nn.arguments import real_numbers, switches, whole_numbers
from batchformer.nn.attention import Attend
from batchformer.nn.encoder import (
    EncoderLayer,
    EncoderWeights,
    check_options,
    default_channel_axis,
    encode,
    layout,
    rows_of_all_ranks,
)
from batchformer.nn.exchange import AllRows, group_of
from batchformer.torch_private import constant_when_compiled

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class _Group:
    """Holds a process group. Copies of a module share it, and it cannot be pickled."""

    def __init__(self, members: Any) -> None:
        self.members = members

    def __deepcopy__(self, memo: dict[int, Any]) -> _Group:
        return self

    def __reduce__(self) -> Any:
        if self.members is not None:
            raise TypeError(
                "A BatchFormer with exchange=<process group> cannot be pickled, because a group "
                "exists only in the processes that made it. Save its state_dict() instead."
            )
        return _Group, (None,)


class BatchFormer(nn.Module):
    """Transformer encoder over the batch axis in training, the identity in eval.

    The layers are ``nn.TransformerEncoderLayer`` objects (feed-forward width ``dim``, ReLU,
    post-norm, no positional encoding) with a forward of our own. State dicts of stock layers load
    here, and ours load there. :class:`~batchformer.nn.encoder.EncoderLayer` says which parts of a
    layer are called as modules.

    Args:
        dim: channels C of the features.
        heads: attention heads; must divide ``dim``.
        layers: stacked encoder layers, each with its own initial weights.
        dropout: probability, in the four places of the stock layer.
        attend: ``"batch"``, or ``"self"`` for the control in which no sample sees another:
            attention is masked to the diagonal, with the same parameters and the same dropout.
        batch_axis: the axis of the samples; 1 for ``(L, N, C)``.
        channel_axis: the axis of the channels; by default the last for up to three axes and axis 1
            beyond; -1 for channels-last images.
        bottleneck: channels of the encoder, if fewer than C. A linear layer projects the features
            down, another projects the encoded features up, and the result is added to the
            features. Both layers have torch's default initial weights.
        exchange: in training with several ranks, attend to the samples of all ranks. A process
            group or a one-dimensional mesh limits this to its ranks: under tensor parallelism,
            where some ranks hold the same samples, pass the data-parallel group.

            Each rank computes its own rows. Only keys and values are sent: 2 C numbers per layer
            for each row, and as many gradients back (``bench --only exchange`` counts them).
            Outputs are those of one process with all rows, and so are gradients once DDP has
            averaged them. If ranks differ in their number of rows, this needs the loss of
            ``stream_loss(..., exchange=True)``.

            Every rank must call the module equally often, with an empty batch if it has no rows,
            and its loss must depend on its outputs. Dropout masks depend on a seed, which rank 0
            draws for each call, and on the number of the row among all rows. They do not depend on
            the number of ranks, and they differ from those of ``exchange=False``.
        copy_layers: start all layers from the weights of the first, as ``nn.TransformerEncoder``
            and thereby the paper's released code do. They are trained separately.
        scale: the root mean square of mixed rows at the start: the initial weight of the last
            normalisation. Set it if the features are fixed and much smaller than 1, because one
            classifier cannot fit rows of two sizes.

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
        scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "BatchFormer"
        width = dim if bottleneck is None else bottleneck
        whole_numbers(where, 1, dim=dim, bottleneck=width, layers=layers)
        axis = 0 if channel_axis is None else channel_axis
        whole_numbers(where, None, batch_axis=batch_axis, channel_axis=axis)
        switches(where, copy_layers=copy_layers)
        check_options(where, width, heads, dropout, attend)
        real_numbers(where, scale=scale)
        if not scale:
            raise ValueError(f"{where}: scale=0 makes all mixed rows zero; use a larger one.")
        self.dim, self.heads, self.dropout, self.attend = dim, heads, dropout, attend
        self.batch_axis, self.channel_axis = batch_axis, channel_axis
        self.exchange = exchange is not False
        self._group = _Group(None if isinstance(exchange, bool) else group_of(exchange))
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, width, dropout, device=device, dtype=dtype)
            for _ in range(layers)
        )
        if copy_layers:
            for layer in self.layers[1:]:
                layer.load_state_dict(self.layers[0].state_dict())
        nn.init.constant_(self.layers[-1].norm2.weight, scale)  # type: ignore[union-attr, arg-type]
        self.down: nn.Linear | None = None
        self.up: nn.Linear | None = None
        if bottleneck is not None:
            self.down = nn.Linear(dim, width, device=device, dtype=dtype)
            self.up = nn.Linear(width, dim, device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_accept_single_layer)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Mixed samples in training, ``x`` itself in eval; shapes as in :func:`batch_former`.

        Args:
            visible: bool, of the shape of x without its channels, such as ``(N, L)``: False where a
                sample has only padding, which the others then do not attend to. Where all samples
                have padding they attend to one another. Not with ``exchange``.
        """
        if not self.training:
            return x
        self._check_layout(x, visible)
        rows = self._rows_of_all_ranks(x, self.dropout) if self.exchange else None
        if (x.shape[self.batch_axis] if rows is None else rows.total) <= 1:
            _warn_of_single_sample()
            return _identity_with_zero_gradients(x, self.parameters())
        return self._encode(x, self.dropout, rows, visible=visible)[0]

    @overload
    def mix(
        self,
        x: Tensor,
        *,
        dropout: float = ...,
        return_weights: Literal[False] = ...,
        visible: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def mix(
        self,
        x: Tensor,
        *,
        dropout: float = ...,
        return_weights: Literal[True],
        visible: Tensor | None = ...,
    ) -> tuple[Tensor, Tensor]: ...
    def mix(
        self,
        x: Tensor,
        *,
        dropout: float = 0.0,
        return_weights: bool = False,
        visible: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the encoder in training and in eval; deterministic unless ``dropout`` is given.

        In eval there is no exchange: a single rank may look at its own samples. ``visible`` is as
        in :meth:`forward`. With ``return_weights`` the attention weights ``(layers, L, heads, N,
        N)`` are returned too.
        """
        self._check_layout(x, visible)
        exchange = self.exchange and self.training
        rows = self._rows_of_all_ranks(x, dropout) if exchange else None
        mixed, weights = self._encode(x, dropout, rows, return_weights, visible)
        return (mixed, torch.stack(weights)) if return_weights else mixed

    def _encode(
        self,
        x: Tensor,
        dropout: float,
        rows: AllRows | None,
        return_weights: bool = False,
        visible: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        # A user may put a stock layer in place of ours; its forward takes other arguments.
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

    def _rows_of_all_ranks(self, x: Tensor, dropout: float) -> AllRows:
        return rows_of_all_ranks(x, self._axes(x), dropout, self._group.members)

    def _axes(self, x: Tensor) -> tuple[int, int]:
        axis = self.channel_axis
        return self.batch_axis, default_channel_axis(x) if axis is None else axis

    def _check_layout(self, x: Tensor, visible: Tensor | None = None) -> None:
        axes = layout(x, self.dim, self.batch_axis, self.channel_axis)
        if visible is None:
            return
        axis = axes[1] % x.ndim
        expected = (*x.shape[:axis], *x.shape[axis + 1 :])
        if self.exchange or visible.shape != expected or visible.dtype != torch.bool:
            raise ValueError(
                f"BatchFormer: visible= is a bool tensor of shape {tuple(expected)} for an input "
                f"of shape {tuple(x.shape)}, without exchange; this one is {visible.dtype} of "
                f"shape {tuple(visible.shape)}, with exchange={self.exchange}."
            )

    def extra_repr(self) -> str:
        text = f"{self.dim}, heads={self.heads}, dropout={self.dropout}, attend={self.attend!r}"
        text += "" if self.down is None else f", bottleneck={self.down.out_features}"
        return f"{text}, exchange=True" if self.exchange else text


def _on_axis(linear: nn.Module, x: Tensor, axis: int) -> Tensor:
    """Apply a linear layer to the channels on this axis."""
    out: Tensor = linear(x.movedim(axis, -1))
    return out.movedim(-1, axis)


def two_streams(x: Tensor, module: BatchFormer, visible: Tensor | None = None) -> Tensor:
    """The plain samples, then the mixed ones: ``(2N, ...)`` in training, ``x`` in eval.

    ``visible`` is passed on to the module.

    >>> two_streams(torch.randn(5, 8), BatchFormer(8)).shape
    torch.Size([10, 8])
    """
    if not isinstance(module, nn.Module) or not hasattr(module, "batch_axis"):
        raise TypeError(
            f"two_streams(): the second argument must be a BatchFormer, or a module with its "
            f"batch_axis, not {type(module).__name__}. Write two_streams(x, BatchFormer(dim))."
        )
    if not module.training:
        return x
    return torch.cat((x, call_encoder(module, x, visible)), dim=module.batch_axis)


def mix_second_half(x: Tensor, module: BatchFormer, visible: Tensor | None = None) -> Tensor:
    """For a later insertion: mix the second half of ``(2N, ...)`` and keep the plain first half."""
    if not module.training:
        return x
    plain, mixed = x.chunk(2, dim=module.batch_axis)
    return torch.cat((plain, call_encoder(module, mixed, visible)), dim=module.batch_axis)


def call_encoder(module: BatchFormer, x: Tensor, visible: Tensor | None) -> Tensor:
    """Call the module, with ``visible`` only if it is given: a user's own may take ``x`` alone."""
    mixed: Tensor = module(x) if visible is None else module(x, visible=visible)
    return mixed


@contextmanager
def without_exchange(model: nn.Module) -> Iterator[None]:
    """Within the block, BatchFormer attends to samples of its own rank and waits for no other."""
    encoders = [encoder for encoder in encoders_of(model) if encoder.exchange]
    try:
        for encoder in encoders:
            encoder.exchange = False
        yield
    finally:
        for encoder in encoders:
            encoder.exchange = True


def _identity_with_zero_gradients(x: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    # The sum of an empty slice is zero even if values are not finite. Its gradient is zeros, not
    # None, so a rank with one sample does not stall the other ranks of DDP.
    zero = torch.stack([p.flatten()[:0].sum() for p in parameters]).sum()
    return x + zero.to(x.dtype)


_warned_of_single_sample = False


@constant_when_compiled
def _warn_of_single_sample() -> None:
    global _warned_of_single_sample
    if not _warned_of_single_sample:
        _warned_of_single_sample = True
        warnings.warn(
            "BatchFormer got a batch of one sample in training. There is no other sample to attend "
            "to, so the mixed stream repeats the plain one. Use larger batches, or drop_last=True "
            "in the DataLoader. (This warning is shown once.)",
            stacklevel=3,
        )


def _accept_single_layer(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object
) -> None:
    """Let the state dict of one ``nn.TransformerEncoderLayer`` load into a one-layer module."""
    layers: Any = module.layers
    if len(layers) == 1 and f"{prefix}self_attn.in_proj_weight" in state_dict:
        for key in layers[0].state_dict():
            state_dict[f"{prefix}layers.0.{key}"] = state_dict.pop(prefix + key)


def encoders_of(model: nn.Module) -> list[BatchFormer]:
    """Every BatchFormer in a model."""
    return [module for module in model.modules() if isinstance(module, BatchFormer)]


def parameter_ids(modules: Iterable[nn.Module]) -> set[int]:
    """The ids of the parameters of these modules."""
    return {id(parameter) for module in modules for parameter in module.parameters()}


def parameter_count(module: nn.Module) -> int:
    """The number of scalars in a module's parameters."""
    return sum(math.prod(p.shape) for p in module.parameters())
