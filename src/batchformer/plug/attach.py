"""One line in: ``attach`` puts BatchFormer into a model, ``param_groups`` into an optimizer."""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from batchformer.nn.arguments import (
    a_model,
    an_optimizer,
    choices,
    real_numbers,
    switches,
    whole_numbers,
)
from batchformer.nn.attention import Attend
from batchformer.nn.module import BatchFormer, encoders_of, parameter_count, parameter_ids
from batchformer.plug.classifier import (
    At,
    AttachError,
    Call,
    axes_of,
    find_and_trace,
    resolve,
    usable,
)
from batchformer.plug.example import give_shapes, remember_example
from batchformer.plug.insertion import (
    RECORD,
    Attachment,
    DoublesSideInputs,
    PerStream,
    WithBatchFormer,
    add_mixin,
    dry_run,
    find_record,
    insert_all,
    is_sharded,
    mark_outputs,
    remove,
    unwrap,
)
from batchformer.plug.preserve import preserve_generators, seed_device
from batchformer.torch_private import BUILT_STEP, COMPILED_CALL, SCHEDULED_STEP, BatchNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


def attach(
    model: M,
    at: At | None = None,
    *,
    heads: int = 4,
    layers: int = 1,
    dropout: float = 0.5,
    dim: int | None = None,
    attend: Attend = "batch",
    exchange: bool | ProcessGroup | DeviceMesh = False,
    streams: Literal["shared", "mixed_only"] = "shared",
    batch_norm: Literal["joint", "per_stream"] = "joint",
    share: bool = False,
    scale: float = 1.0,
    mask: str | None = None,
    batch_axis: int | None = None,
    channel_axis: int | None = None,
    optimizer: Optimizer | None = None,
    lr_factor: float = 0.1,
    example: Any = None,
    input_axis: int = 0,
    verbose: bool = True,
) -> M:
    """Put BatchFormer before the classifier of ``model``, in place.

    In training the model then returns 2N rows for N samples, plain then mixed. In eval its outputs
    are the same as before, bit for bit. State-dict keys and parameters stay as they are; only keys
    that contain ``.batchformer.`` are added. Double the targets yourself: ``match(logits, y)``.

    No random state advances. The encoder's initial weights depend on torch's random state: after
    the same ``torch.manual_seed`` they are the same. Two calls give different weights if anything
    was drawn between them, such as the weights of a second model.

    Args:
        model: any model; not yet wrapped in DDP, FSDP or ``torch.compile``.
        at: the submodule that BatchFormer is put before, or its name; by default the
            classifier, which ``attach`` finds. A list inserts several: rows double at the first,
            and the later ones act on the mixed half.
        heads, layers, dropout, attend: passed on to :class:`BatchFormer`.
        dim: channels of the encoder, for features with very many: the ``bottleneck`` of
            :class:`BatchFormer`. By default those of the features, as in the paper.
        exchange: attend to the samples of all ranks, or of the ranks of a process group; passed on
            to :class:`BatchFormer`. Under tensor parallelism pass the data-parallel group. If
            ranks may differ in their number of rows, use ``stream_loss(..., exchange=True)``.
            It is not clear whether attending to more samples helps: see "Many GPUs" in the docs.
        streams: ``"shared"``: one classifier for both streams. ``"mixed_only"``: the paper's
            ablation in which the classifier sees mixed rows only; rows are not doubled.
        batch_norm: the statistics of BatchNorm layers *after* the insertion: ``"joint"`` over the
            2N rows, or ``"per_stream"``, of which only the plain stream's are recorded.
        share: use one module for all places of a list.
        scale: passed on to :class:`BatchFormer`; the root mean square of your features, if they are
            fixed and ``check`` finds them too small.
        mask: the argument of the module at ``at`` that says where images are padded; then no sample
            attends to the padding of another. ``"attention_mask"`` for DETR models of Hugging Face;
            in a name with "padding", True means padding. By default padding counts as features.
        batch_axis, channel_axis: the axes of the input of the place; found by default.
        optimizer: an existing optimizer, which gets the new parameters as a group of their own.
        lr_factor: the learning rate of that group, as a multiple of the first group's.
        example: one small batch as the model is called with it, if none can be guessed.
        input_axis: the axis of the samples in the inputs; 1 for ``(L, N, ...)``.
        verbose: print one line that says what was done and what to do next.

    Raises:
        AttachError: BatchFormer cannot stand there; the message says why and lists candidates. The
            model is then as it was.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))
    >>> model = attach(model, verbose=False)
    >>> model(torch.randn(6, 20)).shape, model.eval()(torch.randn(6, 20)).shape
    (torch.Size([12, 10]), torch.Size([6, 10]))
    """
    where = "attach()"
    a_model(where, model)
    _refuse_attached(model)
    _refuse_wrapped(model)
    _refuse_optimizer(optimizer)
    choices(where, ("shared", "mixed_only"), streams=streams)
    choices(where, ("joint", "per_stream"), batch_norm=batch_norm)
    switches(where, share=share, verbose=verbose)
    real_numbers(where, lr_factor=lr_factor)
    whole_numbers(where, 1, dim=1 if dim is None else dim)
    axes_given = [0 if axis is None else axis for axis in (batch_axis, channel_axis)]
    whole_numbers(where, 0, input_axis=input_axis, batch_axis=axes_given[0])
    whole_numbers(where, None, channel_axis=axes_given[1])
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy and example is None:
        raise AttachError(
            f"attach(): {lazy[0]!r} has no shape before the first batch, and a guessed batch could "
            "fix the wrong one. Pass example=, a batch of your data."
        )
    _refuse_inference_tensors((name, t) for name, t in tensors if not is_lazy(t))
    # An encoder that is built in inference mode cannot be trained.
    with torch.inference_mode(False):
        if lazy:
            give_shapes(model, example, input_axis)
        # Where: run the model once in eval, and choose the modules to stand before.
        batch, record = find_and_trace(model, example, input_axis)
        chosen = resolve(model, at, record)
        calls = [usable(record.calls[name], record, named=at is not None) for name in chosen]
        axes = [axes_of(call, batch_axis, channel_axis, record) for call in calls]
        if batch_norm == "per_stream" and any(isinstance(c.module, BatchNorm) for c in calls):
            raise AttachError(
                "attach(): batch_norm='per_stream' keeps the streams apart in norms after the "
                "place, not in a norm that is itself the place. In at=, name the layer before it."
            )
        one_module = share or at is None
        pairs = zip(calls, axes, strict=True)
        widths = {c.source.shape[axis] for c, (_, axis) in pairs if c.source is not None}
        if one_module and len(widths) > 1:
            raise AttachError(
                f"attach(): one module cannot be used for inputs of {sorted(widths)} channels. "
                f"Without share=True each place gets its own."
            )
        if mask is not None and exchange is not False:
            raise AttachError(
                "attach(): mask= cannot be used with exchange=. Leave one of them out."
            )
        # What: the encoders.
        build = partial(
            BatchFormer,
            heads=heads,
            layers=layers,
            dropout=dropout,
            attend=attend,
            bottleneck=dim,
            exchange=exchange,
            scale=scale,
        )
        modules = _build_encoders(build, model, calls, axes, one_module)
        unique = list(dict.fromkeys(modules))
        _warn_of_large_encoder(model, unique, calls)
        # Insert them, and run one training pass to prove that rows double.
        try:
            insert_all(calls, modules, streams, mask)
            at_head = any(call.name in names for names in record.producers for call in calls)
            if streams == "shared" and not at_head:
                mark_outputs(model, record, calls)
            seen = dry_run(model, batch, calls, streams, record, strict=at is None)
            norms = seen.norms if batch_norm == "per_stream" else []
            owner = (calls[0].module,)
            for norm in norms:
                add_mixin(norm, PerStream, _doubled_by=owner)
            for module, sides in seen.sides.items():
                add_mixin(module, DoublesSideInputs, _sides=sides, _doubled_by=owner)
            added = [p for m in unique for p in m.parameters()]
            _add_to_optimizer(model, optimizer, added, lr_factor)
        except Exception:
            remove(model)
            raise
        changed = {call.module for call in calls} | set(norms) | seen.sides.keys()
        model.__dict__[RECORD] = Attachment(
            places=tuple(call.name for call in calls),
            changed=tuple(name for name, module in model.named_modules() if module in changed),
            streams=streams,
            input_axis=batch.axis,
        )
        if example is not None:
            remember_example(model, batch)
    _warn_of_ranks(model)
    if verbose:
        print(_summary(model, calls, axes, unique, streams, len(seen.sides)))
    return model


#: The name of the parameter group that holds BatchFormer's parameters.
MODULE = "batchformer"


def param_groups(
    model: nn.Module,
    lr: float,
    lr_factor: float = 0.1,
    *,
    weight_decay: float | None = None,
    module_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Every trainable parameter exactly once, BatchFormer's in a group with its own learning rate.

    Args:
        lr: learning rate of the model.
        lr_factor: BatchFormer's learning rate as a multiple of ``lr``; the paper uses 0.1.
        weight_decay: that of both groups; the optimizer's default if None.
        module_weight_decay: that of BatchFormer's group, if it should differ.

    Raises:
        AttachError: the layer that BatchFormer stands before was replaced after ``attach``.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> [(group["name"], group["lr"]) for group in param_groups(model, lr=0.5)]
    [('model', 0.5), ('batchformer', 0.05)]
    """
    a_model("param_groups()", model)
    decays = {"weight_decay": weight_decay, "module_weight_decay": module_weight_decay}
    given = {name: value for name, value in decays.items() if value is not None}
    real_numbers("param_groups()", lr=lr, lr_factor=lr_factor, **given)
    mine = parameter_ids(encoders_of(model))
    record = find_record(model)[1]
    if record is not None and not mine:
        raise AttachError(
            f"param_groups(): BatchFormer was attached before {', '.join(record.places)}, which "
            f"was replaced since, by reset_classifier or a new head. Call detach(model), then "
            f"attach(model) again."
        )
    trainable = [p for p in model.parameters() if p.requires_grad]
    own_decay = weight_decay if module_weight_decay is None else module_weight_decay
    groups = [
        ("model", [p for p in trainable if id(p) not in mine], lr, weight_decay),
        (MODULE, [p for p in trainable if id(p) in mine], lr * lr_factor, own_decay),
    ]
    return [
        {"params": params, "lr": rate, "name": name}
        | ({} if decay is None else {"weight_decay": decay})
        for name, params, rate, decay in groups
        if params
    ]


def _add_to_optimizer(
    model: nn.Module, optimizer: Optimizer | None, added: list[nn.Parameter], factor: float
) -> None:
    """Add the new parameters to the optimizer, or warn if one exists that does not have them."""
    if optimizer is not None:
        rate = optimizer.param_groups[0]["lr"] * factor
        params: list[Any] = added
        if "param_names" in optimizer.param_groups[0]:  # built from named_parameters()
            names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
            params = [(names[p], p) for p in added]
        group = {"params": params, "lr": rate, "initial_lr": rate, "name": MODULE}
        optimizer.add_param_group(group)
        return
    # Usually no optimizer was built yet, and looking through all objects takes a tenth of a second.
    built = {kind for kind in _subclasses(Optimizer) if hasattr(kind.step, BUILT_STEP)}
    if not built:
        return
    known = parameter_ids([model])
    for found in _existing(built):
        groups = getattr(found, "param_groups", ())
        if any(id(p) in known for group in groups for p in group["params"]):
            warnings.warn(
                f"attach(): an optimizer ({type(found).__name__}) was built before and does not "
                f"have BatchFormer's {len(added)} parameters: THEY WILL NOT BE TRAINED. Pass "
                f"optimizer= to attach, or build the optimizer after it.",
                stacklevel=3,
            )
            return


def _warn_of_ranks(model: nn.Module) -> None:
    """Warn if a wrapper exists that averages the gradients of the old parameters alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    wrappers = _existing(_subclasses(nn.parallel.DistributedDataParallel))
    if any(part is model for wrapper in wrappers for part in wrapper.modules()):
        warnings.warn(
            "attach(): the model is in DistributedDataParallel already, which does not average the "
            "gradients of new parameters: RANKS WILL TRAIN DIFFERENT ENCODERS. Attach first, then "
            "wrap.",
            stacklevel=3,
        )


def _existing(kinds: set[type[T]]) -> list[T]:
    """All objects of these classes in this process.

    A model does not know its optimizers and wrappers, and torch has no list of them. Only the
    garbage collector can find those that were made before ``attach`` was called.
    """
    # type() rather than isinstance(), which would trigger lazy proxies.
    return [found for found in gc.get_objects() if type(found) in kinds]


def _subclasses(kind: type[T]) -> set[type[T]]:
    return {kind}.union(*(_subclasses(below) for below in kind.__subclasses__()))


def _refuse_attached(model: nn.Module) -> None:
    if RECORD in model.__dict__ or any(isinstance(m, WithBatchFormer) for m in model.modules()):
        raise AttachError(
            "attach(): BatchFormer is attached already. Call detach(model) first, or name all "
            "places in one call: attach(model, at=[...])."
        )


def _refuse_wrapped(model: nn.Module) -> None:
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise AttachError(
            "attach(): a TorchScript model cannot be changed. Attach to the model that it was made "
            "from, and script what export(model) returns after training."
        )
    if isinstance(model, nn.DataParallel):
        raise AttachError(
            "attach(): nn.DataParallel is not supported: its replicas would share the encoder of "
            "one device. Attach to the model inside and train with DistributedDataParallel."
        )
    if getattr(model, COMPILED_CALL, None) is not None:
        raise AttachError(
            f"attach(): this {name} is compiled already (model.compile()). Attach first, then "
            f"compile it."
        )
    if unwrap(model) is not model:
        raise AttachError(
            f"attach(): the model is wrapped ({name}). Attach first and wrap it afterwards, so "
            f"that the wrapper sees the new parameters."
        )
    if is_sharded(model):
        raise AttachError(
            f"attach(): the parameters are sharded already ({name}). Attach first, then shard."
        )


def _refuse_inference_tensors(tensors: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in tensors:
        if tensor.is_inference():
            raise AttachError(
                f"attach(): {name!r} was made inside torch.inference_mode(), and no such tensor "
                "can be trained. Build the model outside that block, or attach to "
                "copy.deepcopy(model) made outside it, whose tensors are ordinary ones."
            )


def _refuse_optimizer(optimizer: Optimizer | None) -> None:
    """Refuse what is not an optimizer, and one without a learning rate or with a scheduler.

    A scheduler would fail on a new group.
    """
    an_optimizer("attach()", optimizer)
    if optimizer is None:
        return
    if optimizer.param_groups[0].get("lr") is None:
        raise AttachError(
            f"attach(): this {type(optimizer).__name__} has no learning rate (lr=None), of which "
            "BatchFormer's group could have a share. Attach first, then build the optimizer."
        )
    if hasattr(optimizer.step, SCHEDULED_STEP):
        raise AttachError(
            "attach(): this optimizer already has a learning-rate scheduler, which would not know "
            "BatchFormer's group. Attach first, then build the scheduler."
        )


def _build_encoders(
    build: partial[BatchFormer],
    model: nn.Module,
    calls: list[Call],
    axes: list[tuple[int, int]],
    one_module: bool,
) -> list[BatchFormer]:
    """An encoder for each call, with the type and device of the module or else of the model."""
    modules: list[BatchFormer] = []
    for call, (batch_axis, channel_axis) in zip(calls, axes, strict=True):
        if one_module and modules:
            modules.append(modules[0])
            continue
        assert call.source is not None
        near = (*islice(call.module.parameters(), 1), *islice(model.parameters(), 1), call.source)
        with _seeded_from_rng_state(near[0].device, len(modules)):
            try:
                module = build(
                    call.source.shape[channel_axis],
                    batch_axis=batch_axis,
                    channel_axis=channel_axis,
                    device=near[0].device,
                    dtype=near[0].dtype if near[0].is_floating_point() else None,
                )
            except ValueError as error:
                raise AttachError(f"attach(): before {call.describe()}: {error}") from error
        modules.append(module)
    return modules


@contextmanager
def _seeded_from_rng_state(device: torch.device, number: int) -> Iterator[None]:
    """Within the block, seed torch by a hash of its random state; restore that state at the end.

    Initial weights are drawn in it. After the same ``torch.manual_seed``, a baseline and a model
    with BatchFormer then see the same order and augmentation, and that seed still decides the
    encoder's weights.
    """
    state = bytes([*torch.get_rng_state().tolist(), *str(number).encode()])
    seed = int.from_bytes(hashlib.sha256(state).digest()[:8], "big") >> 1
    with preserve_generators([device]):
        seed_device(device, seed)
        yield


#: An encoder of this many parameters causes a warning if it is over half as large as the network.
HEAVY = 50_000_000


def _warn_of_large_encoder(model: nn.Module, modules: list[BatchFormer], calls: list[Call]) -> None:
    added, before = sum(map(parameter_count, modules)), parameter_count(model)
    if added >= HEAVY and 2 * added > before:
        warnings.warn(
            f"attach(): BatchFormer adds {added:,} parameters to a network of {before:,}, because "
            f"{calls[0].name!r} reads {modules[0].dim} channels. attach(model, dim=512) projects "
            f"them to fewer first, and at= chooses another place.",
            stacklevel=3,
        )


def _summary(
    model: nn.Module,
    calls: list[Call],
    axes: list[tuple[int, int]],
    modules: list[BatchFormer],
    streams: str,
    sides: int,
) -> str:
    places = ", ".join(f"'{call.name}'" for call in calls[:4]) + (", ..." if len(calls) > 4 else "")
    source = calls[0].source
    assert source is not None
    positions = source.numel() // (source.shape[axes[0][0]] * source.shape[axes[0][1]])
    each = f", at each of {positions} positions" if positions > 1 else ""
    each += ", over the samples of all ranks" if modules[0].exchange else ""
    added = sum(parameter_count(module) for module in modules)
    readers = "1 module reads" if sides == 1 else f"{sides} modules read"
    beside = f"; what {readers} beside the features is doubled" if sides else ""
    rows = "2N rows, plain then mixed" if streams == "shared" else "N mixed rows"
    then = f"criterion(logits, {'match(logits, y)' if streams == 'shared' else 'y'})"
    if modules[0].exchange:
        then = "stream_loss(criterion, logits, y, exchange=True)"
    if streams == "shared" and any(c.__name__ == "PreTrainedModel" for c in type(model).mro()):
        then += ", with logits = model(...).logits and no labels= for the model, or loss = "
        then += "model(..., labels=duplicate(y)).loss while it trains; in place of "
        then += "Trainer, batchformer.adapters.transformers.BatchFormerTrainer does it for you"
    return (
        f"BatchFormer attached before {places} ({modules[0].dim} channels{each}): "
        f"+{added:,} parameters; training gives {rows}{beside}. Next: loss = {then}"
    )
