"""What ``attach`` puts into a model, the training pass that proves it, and the record of it."""

from __future__ import annotations

import functools
import warnings
import weakref
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.optim.swa_utils import AveragedModel

from batchformer.nn.module import (
    BatchFormer,
    call_encoder,
    mix_second_half,
    two_streams,
    without_exchange,
)
from batchformer.plug.classifier import (
    CHILD,
    NO_ROWS,
    OWN_FORWARD,
    AttachError,
    Call,
    Trace,
    find_classifiers,
    output_tensors,
    without_auxiliary,
)
from batchformer.plug.example import Batch, run_without_values
from batchformer.plug.preserve import preserve_state, temporary_hooks
from batchformer.plug.side_inputs import (
    OTHER_ROWS,
    UNSEEN,
    PaddingMask,
    RowAxes,
    SideInputs,
    find_side_inputs,
    padding_mask,
    row_axes,
    tensors,
)
from batchformer.plug.two_stream_tensor import mark_two_streams
from batchformer.torch_private import CHILDREN, COMPILED_MODULE, BatchNorm

# ---- Give a module another ``forward``, reversibly, without a hook or a wrapper.
#
# The object's class becomes a subclass of its own class. Parameters, keys, ``isinstance`` and
# ``named_modules`` stay as they were, compilers see an ordinary module, and copies and pickles
# work. Several mixins may stand in front of one class, and each can be removed without the others.


class ForwardMixin(nn.Module):
    """Base of the mixins that :func:`add_mixin` puts in front of a module's own class."""

    _mixin: type[ForwardMixin]
    _own_class: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The generated class has no importable name, so the pickle says how to generate it again.
        own: Any = self
        state = own.__getstate__() if hasattr(own, "__getstate__") else self.__dict__
        mixins, cls = [], type(self)
        while "_mixin" in cls.__dict__:
            mixins.append(cls._mixin)
            cls = cls._own_class  # type: ignore[assignment]
        return _blank, (tuple(mixins), cls), state

    def __prepare_scriptable__(self) -> Any:  # torch.jit.script asks every module in a model
        raise AttachError(
            "A model with BatchFormer cannot be scripted. Script what export(model) returns."
        )


@functools.cache
def _combined(mixin: Any, own: Any) -> Any:
    name = f"{own.__name__}{mixin.__name__}"
    return type(name, (mixin, own), {"_mixin": mixin, "_own_class": own, "__module__": __name__})


def _blank(mixins: tuple[Any, ...], own: Any) -> Any:
    for mixin in reversed(mixins):
        own = _combined(mixin, own)
    return own.__new__(own)


def add_mixin(module: nn.Module, mixin: Any, **attributes: Any) -> None:
    """Put ``mixin`` in front of the module's class, and set the attributes that it reads."""
    module.__dict__.update(attributes)
    own: Any = type(module)
    if is_parametrized(module):
        # torch generates a class for a parametrized module and later returns to its first base,
        # so the mixin must stand between the two.
        (base,) = own.__bases__
        generated = _rebased(own, (_combined(mixin, base),))
        generated._origin = own
        module.__class__ = generated
    else:
        module.__class__ = _combined(mixin, own)


def remove_mixin(module: nn.Module, mixin: Any) -> None:
    """Remove ``mixin`` from the module's class; other mixins and generated classes stay."""
    module.__class__ = _without(type(module), mixin)


def _without(cls: Any, mixin: Any) -> Any:
    if not issubclass(cls, mixin):
        return cls
    if "_mixin" in cls.__dict__:
        own = _without(cls._own_class, mixin)
        return own if cls._mixin is mixin else _combined(cls._mixin, own)
    # A class generated on top of ours, such as that of a parametrized module.
    bases = tuple(_without(base, mixin) for base in cls.__bases__)
    origin = cls.__dict__.get("_origin")
    if origin is not None and origin.__bases__ == bases and _names(origin) == _names(cls):
        return origin
    return _rebased(cls, bases)


def _names(cls: Any) -> set[str]:
    """The names that a generated class defines, without what Python adds to a class in use."""
    return {name for name in cls.__dict__ if not name.startswith("__")} - {"_origin"}


def _rebased(cls: Any, bases: tuple[Any, ...]) -> Any:
    """The same generated class on other bases."""
    left_out = ("__dict__", "__weakref__", "_origin")
    namespace = {key: value for key, value in cls.__dict__.items() if key not in left_out}
    name = cls.__name__
    for old, new in zip(cls.__bases__, bases, strict=True):
        name = name.replace(old.__name__, new.__name__)
    return type(cls)(name, bases, namespace)


# ---- Modules with BatchFormer before them, and norms that keep the streams apart.

Role = Literal["double", "mix_second_half", "mix_all", "pass"]


@dataclass
class Place:
    """How one insertion acts.

    Attributes:
        role: ``double`` makes two streams of one; ``mix_second_half`` acts on rows doubled before;
            ``mix_all`` mixes without a plain stream; ``pass`` changes nothing.
        owner: the module whose child ``batchformer`` acts here, in a tuple so that it is not
            registered a second time. The child is looked up in every pass, so a module that
            replaces it acts from then on.
        marks: whether outputs are logits, to be marked as two streams
            (:mod:`~batchformer.plug.two_stream_tensor`).
        stream: if several heads read the same tensor, their common stream; only ``double`` uses it.
        mask: which argument of the module says where there is only padding.
    """

    role: Role
    owner: tuple[nn.Module]
    marks: bool = False
    stream: SharedStream | None = None
    mask: PaddingMask | None = None

    @property
    def encoder(self) -> BatchFormer:
        return encoder_of(self.owner[0])

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The features that the module reads instead of ``x``; other arguments may have a mask."""
        module = self.encoder
        if not module.training or self.role == "pass":
            return x
        rows = x.shape[module.batch_axis] // (2 if self.role == "mix_second_half" else 1)
        mask = self.mask
        visible = None if mask is None else mask.visible(args, kwargs, rows, module.batch_axis)
        if self.role == "mix_second_half":
            return mix_second_half(x, module, visible)
        if self.role == "mix_all":
            return call_encoder(module, x, visible)
        if self.stream is not None and visible is None:
            return self.stream.double(x, module)
        return two_streams(x, module, visible)


def encoder_of(owner: nn.Module) -> BatchFormer:
    """The BatchFormer that is a child of ``owner`` now."""
    encoder: BatchFormer | None = getattr(owner, CHILD, None)
    if encoder is None:
        raise RuntimeError(
            f"The child {CHILD!r} was removed from a layer that BatchFormer stands before. Call "
            f"batchformer.detach(model) to remove BatchFormer, or assign another BatchFormer to "
            f"{CHILD!r}."
        )
    return encoder


@dataclass
class SharedStream:
    """The doubled features of a forward pass, kept until the last head has read them.

    A pass may call only some heads, and the next pass may read the same tensor of stored features.
    So doubled features are dropped once a gradient has gone through them, and are computed again
    once gradients are switched on or off.
    """

    readers: int
    left: int = 0
    source: Tensor | None = None
    doubled: Tensor | None = None
    with_gradient: bool = False

    def __reduce__(self) -> tuple[type[SharedStream], tuple[int]]:
        # If a head was not called, features are left behind. No copy or file shall contain them.
        return SharedStream, (self.readers,)

    def double(self, x: Tensor, module: BatchFormer) -> Tensor:
        known = self.source is x and self.with_gradient == torch.is_grad_enabled()
        if not known or self.doubled is None:
            self.source, self.doubled, self.left = x, two_streams(x, module), self.readers
            self.with_gradient = torch.is_grad_enabled()
            if self.doubled.requires_grad and not torch.compiler.is_compiling():
                # A hook that held the stream would keep both alive for ever.
                hook = functools.partial(_drop, weakref.ref(self))
                self.doubled.register_hook(hook)  # type: ignore[no-untyped-call]
        doubled = self.doubled
        self.left -= 1
        if self.left == 0:
            self.drop()
        return doubled

    def drop(self) -> None:
        # Back to the initial values: a compiler compiles again if an attribute has changed.
        self.source = self.doubled = None
        self.with_gradient = False


def _drop(stream: weakref.ref[SharedStream], gradient: Tensor) -> None:
    kept = stream()
    if kept is not None:
        kept.drop()


class WithBatchFormer(ForwardMixin):
    """A module whose input passes through BatchFormer first."""

    _place: Place

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        place = self._place
        features = place(x, *args, **kwargs)
        if not args and not kwargs:  # compilers cannot break a graph inside a try block
            out = super().forward(features)
        else:
            if place.marks and not torch.compiler.is_compiling():
                unseen = _unseen(place, x, features, args, kwargs)
                if unseen and not isinstance(self, DoublesSideInputs):
                    # A head that reads labels, such as one with a margin, may fail silently.
                    warnings.warn(unseen, stacklevel=2)
            try:
                out = super().forward(features, *args, **kwargs)
            except (RuntimeError, AssertionError) as error:  # torch's attention asserts its shapes
                unseen = _unseen(place, x, features, args, kwargs)
                if unseen is None:
                    raise
                raise RuntimeError(f"{error}\n{unseen}") from error
        # Without gradients there is no loss that could get the rows wrong.
        marks = place.marks and torch.is_grad_enabled() and place.encoder.training
        return mark_two_streams(out) if marks else out


def _unseen(place: Place, x: Tensor, features: Tensor, args: Any, kwargs: Any) -> str | None:
    """Advice if a module reads N rows beside the 2N rows of the features; else None."""
    if features is x or place.role != "double":
        return None
    rows = x.shape[place.encoder.batch_axis]
    beside = any(t.shape[0] == rows for _, t in tensors((args, kwargs)))
    return UNSEEN.format(rows=rows) if beside else None


class PerStream(ForwardMixin):
    """BatchNorm with statistics for each stream, which records only those of the plain stream.

    At test there is only the plain stream, so only its running statistics are used.
    """

    _doubled_by: tuple[nn.Module]  # the owner of the BatchFormer that doubles the rows

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and encoder_of(self._doubled_by[0]).training):
            return super().forward(x)  # type: ignore[no-any-return]
        plain, mixed = x.chunk(2)
        norm: Any = self
        # Both streams need the norm's own forward: some norms fuse an activation into it.
        tracked, norm.track_running_stats = norm.track_running_stats, False
        try:
            mixed = super().forward(mixed)
        finally:
            norm.track_running_stats = tracked
        return torch.cat((super().forward(plain), mixed))


class DoublesSideInputs(ForwardMixin):
    """A module that reads features of two streams, and repeats what it reads beside them."""

    _sides: SideInputs
    _doubled_by: tuple[nn.Module]  # the owner of the BatchFormer that doubles the rows

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if encoder_of(self._doubled_by[0]).training:
            args, kwargs = self._sides.double(args, kwargs)
        return super().forward(*args, **kwargs)


#: The mixins that ``attach`` may put in front of a module's class.
OURS = (WithBatchFormer, PerStream, DoublesSideInputs)


def insert(target: nn.Module, place: Place, encoder: BatchFormer | None = None) -> None:
    """Put a place before ``target``. An encoder, if given, becomes a child of ``target``."""
    add_mixin(target, WithBatchFormer, _place=place)
    if encoder is not None:
        target.add_module(CHILD, encoder)


def remove(model: nn.Module) -> None:
    """Undo what ``attach`` did to a model and the modules in it."""
    for module in [module for module in model.modules() if isinstance(module, OURS)]:
        if isinstance(module, WithBatchFormer):
            getattr(module, CHILDREN).pop(CHILD, None)
        for name in ("_place", "_sides", "_doubled_by"):
            module.__dict__.pop(name, None)
        for mixin in OURS:
            if isinstance(module, mixin):
                remove_mixin(module, mixin)
                for name, value in vars(module).items():
                    # Accelerate's hooks keep the method that they wrap.
                    if isinstance(value, MethodType) and value.__func__ is mixin.forward:
                        module.__dict__[name] = MethodType(type(module).forward, module)


def insert_all(
    calls: list[Call], modules: list[BatchFormer], streams: str, mask: str | None = None
) -> None:
    """Put each encoder before its call's module; calls of one input and encoder share a stream."""
    masks = [None if mask is None else padding_mask(call, mask) for call in calls]
    pairs = [(id(call.source), id(module)) for call, module in zip(calls, modules, strict=True)]
    shared = {pair: SharedStream(pairs.count(pair)) for pair in pairs if pairs.count(pair) > 1}
    owners: dict[int, nn.Module] = {}
    role: Role = "double" if streams == "shared" else "mix_all"
    for call, module, pair, beside in zip(calls, modules, pairs, masks, strict=True):
        owner = owners.setdefault(id(module), call.module)
        doubles = role == "double"  # rows that are only mixed are not two streams
        place = Place(role, (owner,), marks=doubles, stream=shared.get(pair), mask=beside)
        insert(call.module, place, module if owner is call.module else None)


def mark_outputs(model: nn.Module, record: Trace, calls: list[Call]) -> None:
    """If BatchFormer stands deep inside, mark the classifier's outputs as two streams.

    The outputs of the places then need no mark, which would slow down every operation after them.
    """
    try:
        names = find_classifiers(model, record)
    except AttachError:
        return  # without one classifier, the marks of the places may reach the outputs
    heads = [record.calls[name].module for name in names]
    for call in calls:
        call.module.__dict__["_place"].marks = call.module in heads
    for head in heads:
        if not isinstance(head, WithBatchFormer):
            insert(head, Place("pass", (calls[0].module,), marks=True))


# ---- One training pass on the example batch, which proves that rows double.

#: Advice where a loss inside the model may have failed.
LABELS = "If the example contains labels, leave them out: they would need 2N rows. "


@dataclass
class TrainingPass:
    """What happened in one training pass."""

    # Tensors that a loss would use, without auxiliary ones
    outputs: list[Tensor] = field(default_factory=list)
    # Each place that was run, with the features it read
    inputs: list[tuple[Place, Tensor]] = field(default_factory=list)
    # The encoders, once for each time they ran
    encoded: list[nn.Module] = field(default_factory=list)
    # BatchNorm modules that saw twice the rows they see in eval
    norms: list[nn.Module] = field(default_factory=list)
    # Places that read rows which an earlier place had doubled
    later: list[Place] = field(default_factory=list)
    # Modules that need their side inputs doubled
    sides: dict[nn.Module, SideInputs] = field(default_factory=dict)
    # Names of places that are in eval although the model is in training
    in_eval: list[str] = field(default_factory=list)


def dry_run(
    model: nn.Module, batch: Batch, calls: list[Call], streams: str, record: Trace, strict: bool
) -> TrainingPass:
    """Run one training pass: decide each place's role, count rows, find the norms after places.

    If the user named the places, side inputs of modules are doubled too, where a place reads any
    or where a pass without doubling them fails.

    Args:
        strict: every output must double; otherwise one is enough (auxiliary outputs may stay).

    Raises:
        AttachError: rows are lost or doubled twice, or a later layer does not accept them.
    """
    tried = [call.name for call in calls]
    names = ", ".join(map(repr, tried))
    doubles_sides = not strict and streams == "shared"
    needed = doubles_sides and any(call.has_other_samples(batch.rows) for call in calls)
    try:
        seen = _training_pass(model, batch, calls, record, needed)
    except Exception as first:
        try:
            if needed or not doubles_sides:
                raise  # there is nothing else to try
            seen = _training_pass(model, batch, calls, record, doubles_sides=True)
        except Exception as error:
            reason = str(error).rstrip(".")
            if _fails_alone(model, batch):
                raise AttachError(
                    f"attach(): in training the model fails on this batch without BatchFormer too: "
                    f"{reason}. Pass example=, a batch that it trains on."
                ) from first
            several = len(batch.args) + len(batch.kwargs) > 1
            raise AttachError(
                f"attach(): with BatchFormer at {names} a training pass fails: {reason}. The "
                f"layers after the place do not accept 2N rows. {OTHER_ROWS * doubles_sides}"
                f"{LABELS * several}{record.around(tried)}{record.candidates(tried)}"
            ) from first
    if seen.in_eval:
        raise AttachError(
            f"attach(): {', '.join(map(repr, seen.in_eval))} stays in eval when the model is in "
            f"training (a train() of its own keeps a frozen part so), and BatchFormer acts in "
            f"training alone. Choose places outside that part. {record.candidates(tried)}"
        )
    for place in seen.later:  # set again: a pass without values restores attributes
        place.role = "mix_second_half"
    _split_streams(seen.inputs)
    if len(seen.encoded) > len(seen.inputs):
        raise AttachError(
            f"attach(): with BatchFormer at {names} it runs {len(seen.encoded)} times in a "
            f"training pass. A container there runs all its children, and BatchFormer is one of "
            f"them: choose its first layer instead. {record.candidates(tried)}"
        )
    expected = 2 * batch.rows if streams == "shared" else batch.rows
    axes = {0, *(place.encoder.batch_axis for place in _places(calls))}
    fits = [expected in {t.shape[a] for a in axes if a < t.ndim} for t in seen.outputs]
    if len(record.shapes) == len(fits):  # rows on another axis: experts stacked as (E, N, K)
        fits = [
            fit or _has_more_rows(t.shape, shape, batch.rows, expected)
            for fit, t, shape in zip(fits, seen.outputs, record.shapes, strict=True)
        ]
    if not fits:
        raise AttachError(NO_ROWS)
    if not any(fits) or (strict and not all(fits)):
        lines = OWN_FORWARD.format(channels=_places(calls)[0].encoder.dim)
        at = repr(tried[0] if len(tried) == 1 else tried)
        kept = f"If the others shall keep their rows, say at={at}. " if any(fits) else ""
        raise AttachError(
            f"attach(): with BatchFormer at {names} a training pass gives outputs of shapes "
            f"{[tuple(t.shape) for t in seen.outputs]} for {batch.rows} samples, not {expected} "
            f"rows. Mixed rows are lost after the place (a head for each token, pooled later, as "
            f"in GPT-2), or an output does not come from it: name its classifier with at=. "
            f"{kept}{lines} {record.candidates(tried, lines=False)}"
        )
    return seen


def _fails_alone(model: nn.Module, batch: Batch) -> bool:
    """Remove BatchFormer, and say whether a training pass fails without it too."""
    remove(model)
    with preserve_state(model), torch.no_grad():
        try:
            batch.run(model.train())
        except Exception:
            return True
    return False


def _has_more_rows(shape: torch.Size, in_eval: torch.Size, samples: int, expected: int) -> bool:
    """Whether an output has its shape of eval, but ``expected`` rows on the axis of samples."""
    return any(
        size == samples and (*in_eval[:axis], expected, *in_eval[axis + 1 :]) == tuple(shape)
        for axis, size in enumerate(in_eval)
    )


def _training_pass(
    model: nn.Module, batch: Batch, calls: list[Call], record: Trace, doubles_sides: bool
) -> TrainingPass:
    axes = row_axes(model, batch) if doubles_sides else {}
    with preserve_state(model), without_exchange(model), torch.no_grad():
        model.train()
        return run_without_values(
            model, batch, lambda batch: _observed_pass(model, batch, calls, record, axes)
        )


def _observed_pass(
    model: nn.Module, batch: Batch, calls: list[Call], record: Trace, axes: RowAxes
) -> TrainingPass:
    seen = TrainingPass()
    seen.in_eval = [
        call.name
        for call, place in zip(calls, _places(calls), strict=True)
        if not place.encoder.training
    ]
    encoders = dict.fromkeys(place.encoder for place in _places(calls))
    later_axis = any(encoder.batch_axis for encoder in encoders)
    in_eval = {call.module: call.source for call in record.calls.values()}

    def note_input(module: Any, args: tuple[Any, ...]) -> None:
        place = module._place
        seen.inputs.append((place, args[0]))
        if place.role == "double" and args[0].shape[place.encoder.batch_axis] == 2 * batch.rows:
            place.role = "mix_second_half"
            seen.later.append(place)

    def note_norm(module: nn.Module, args: tuple[Any, ...]) -> None:
        # Twice the rows of eval, not 2N: tokens may have been flattened into the rows.
        before = in_eval.get(module)
        rows = batch.rows if before is None or later_axis else before.shape[0]
        if args[0].shape[0] == 2 * rows:
            seen.norms.append(module)

    def double_sides(module: nn.Module, args: Any, kwargs: Any) -> Any:
        place = module.__dict__.get("_place")
        doubles = place is not None and place.role == "double"
        sides = find_side_inputs(axes[module], args, kwargs, batch.rows, doubles)
        if sides is None:
            return None
        seen.sides[module] = sides
        return sides.double(args, kwargs)

    def note_encoder(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.encoded.append(module)

    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    handles = [call.module.register_forward_pre_hook(note_input) for call in calls]
    handles += [encoder.register_forward_pre_hook(note_encoder) for encoder in encoders]
    handles += [norm.register_forward_pre_hook(note_norm) for norm in norms]
    handles += [m.register_forward_pre_hook(double_sides, with_kwargs=True) for m in axes]
    with temporary_hooks(handles):
        seen.outputs = output_tensors(without_auxiliary(batch.run(model)))
    return seen


def _places(calls: list[Call]) -> list[Place]:
    return [call.module.__dict__["_place"] for call in calls]


def _split_streams(inputs: list[tuple[Place, Tensor]]) -> None:
    """Undo the sharing of a mixed stream by heads that read different tensors in training."""
    for stream in [place.stream for place, _ in inputs]:
        group = [(place, x) for place, x in inputs if place.stream is stream]
        same = len({id(x) for _, x in group}) == 1
        if stream is not None and not (same and len(group) == stream.readers):
            for place, _ in group:
                place.stream = None


# ---- What ``attach`` records on the model, and how to find it under wrappers.

RECORD = "_batchformer_attachment"


@dataclass(frozen=True)
class Attachment:
    """What ``attach`` did to a model, stored as its attribute ``RECORD``."""

    # Names of the modules that BatchFormer stands before, in the order of their calls
    places: tuple[str, ...]
    # Names of the modules that must keep their changed class: the places, norms per stream, and
    # modules that double their side inputs
    changed: tuple[str, ...]
    streams: Literal["shared", "mixed_only"]
    input_axis: int = 0  # the axis of the samples in the model's inputs


def find_record(model: nn.Module) -> tuple[nn.Module, Attachment | None]:
    """The module that was given to ``attach`` and its record; without these, the model and None.

    If the model was wrapped after ``attach`` (PEFT), it is a module inside.
    """
    holder = next((m for m in model.modules() if RECORD in m.__dict__), model)
    return holder, holder.__dict__.get(RECORD)


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel, a weight average or a compiled module.

    A wrapper of another library, such as timm's ``ModelEmaV3``, is recognised by its only child:
    ``module``, to which BatchFormer is attached.
    """
    while True:
        if isinstance(model, _WRAPPERS):
            model = model.module
        elif isinstance(getattr(model, COMPILED_MODULE, None), nn.Module):
            model = getattr(model, COMPILED_MODULE)
        elif [*getattr(model, CHILDREN)] == ["module"] and RECORD in vars(model.module):
            model = model.module  # type: ignore[assignment]
        else:
            return model


def is_sharded(model: nn.Module) -> bool:
    """Whether the parameters of a part of the model are sharded over ranks (FSDP)."""
    names = {base.__name__ for kind in {type(m) for m in model.modules()} for base in kind.mro()}
    return any("FSDP" in name or "FullySharded" in name for name in names)
