"""Load weights from files or timm, also into a network with another classifier; write them."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from batchformer.insight.optional import extra
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.data.files.location import looked_in
from batchformer.lab.models.heads import classifier_name

Weights = Mapping[str, Tensor]
#: Where the bottlenecks of a ResNet stride: in their first 1x1 convolution, or in the 3x3.
Place = Literal["1x1", "3x3"]
#: Keys under which training scripts save a network's state, outermost first.
WRAPPERS = ("state_dict_best", "state_dict", "model", "model_state_dict", "network", "method")
#: Keys of scripts that save features and classifier separately.
PARTS = ("feat_model", "classifier")
#: Prefixes that wrappers of networks add to every name.
PREFIXES = ("module.", "_orig_mod.")
#: Prefixes of one network among several, in the order they are looked for: the query encoder of
#: MoCo-v2, that of MoCo-v3, and the names in other scripts and in this package.
NETWORKS = ("encoder_q.", "base_encoder.", "network.", "backbone.")
#: Prefixes of networks whose classifier has been replaced by a projection.
WITH_PROJECTION = ("encoder_q.", "base_encoder.")
#: Names of these projections: in a ResNet, in a ViT.
PROJECTIONS = ("fc.", "head.")
#: Values of ``layout`` in the metadata of a .safetensors file, and where its bottlenecks stride.
LAYOUTS: dict[str, Place] = {"stride_in_1x1": "1x1", "stride_in_3x3": "3x3"}
#: Share of a file's tensors that may be unused, such as an auxiliary classifier. With more of them
#: the file belongs to a larger network.
MOST_UNUSED = 0.1
#: Modules with a class Bottleneck that strides in its 3x3 convolution.
HOMES = ("timm.models.resnet", "torchvision.models.resnet")


class OtherNetwork(ValueError):
    """The weights belong to another network."""


@dataclass(frozen=True)
class StoredWeights:
    """What a file of weights holds."""

    tensors: Weights  # by the names of the network's state
    stride: Place | None = None  # of the bottlenecks of its network; None if the file does not say
    words: str = ""  # which of several networks was read, and what was left out


@dataclass(frozen=True)
class Fitted:
    """The result of loading weights."""

    words: str  # one line that says what was loaded
    classifier: bool  # whether the classifier was loaded too


def find_weights(name: str, root: str | None = None) -> Path:
    """The file of this name: here, beside the data, or in the folder of all data.

    Beside the data, in the folder `root`, the last part of the name is tried too.
    """
    path = Path(name).expanduser()
    places = [path]
    if not path.is_absolute():
        beside = None if root is None else Path(root).expanduser()
        if beside is not None and beside.is_dir():
            places += [beside / path, beside / path.name]
        places.append(looked_in() / path)
    places = list(dict.fromkeys(places))
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"There is no file of weights {' or '.join(map(str, places))}. Name a state dict (.pth or "
        ".safetensors) of this network by --weights FILE, or take those that timm has for a "
        "network of its own by --weights timm"
    )


def read_weights(file: Path, stride_told: bool = False) -> StoredWeights:
    """The state dict in a .safetensors file, or in a file of torch.save with only tensors.

    From a checkpoint of MoCo, or another one with several networks under known names, only the
    network that is used afterwards is read, without momentum encoders, queues and projections.
    `stride_told` is as for `read_stride`.
    """
    if file.suffix == ".safetensors":
        with _safetensors(file) as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        taken, words = one_network(_without_prefixes(tensors))
        return StoredWeights(taken, read_stride(file, stride_told), words)
    if not file.stat().st_size:
        raise ValueError(f"{file} is empty: name another file of weights by --weights")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # bytes that are not a pickle may raise any error
        # torch's next sentence advises to load without this safety.
        reason = f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0]
        raise ValueError(
            f"{file} holds more than weights, or is damaged, or no file of torch.save; only "
            "tensors are loaded, as anything else could run code. Save the state dict alone: "
            f"torch.save(model.state_dict(), ...). ({reason})"
        ) from error
    network, words = one_network(_state(found, file))
    return StoredWeights(network, words=words)


def read_stride(file: Path, stride_told: bool = False) -> Place | None:
    """Where the bottlenecks of a file's network stride, by its metadata; reads no tensor.

    An unknown layout is an error, unless the user says where they stride (`stride_told`).
    """
    if file.suffix != ".safetensors":
        return None
    with _safetensors(file) as opened:
        layout = (opened.metadata() or {}).get("layout")
    if layout is None or (stride_told and layout not in LAYOUTS):
        return None
    if layout not in LAYOUTS:
        raise ValueError(
            f"{file} has the unknown layout {layout!r} in its metadata; known ones are "
            f"{', '.join(LAYOUTS)}. Weights of one layout load into the other but are wrong there: "
            "say where its bottlenecks stride by --stride 1x1 or --stride 3x3"
        )
    return LAYOUTS[layout]


def fit_weights(network: nn.Module, weights: Weights, source: str) -> Fitted:
    """Load weights into a network; a missing or unfitting classifier keeps its initial weights.

    Raises:
        OtherNetwork: anything but the classifier is missing or has another shape, or many of the
            weights are not in the network.
    """
    own, head = network.state_dict(), f"{classifier_name(network)}."
    given = {name: value for name, value in weights.items() if name in own}
    other = [name for name, value in given.items() if value.shape != own[name].shape]
    # Old files lack the counters of batches, which do not affect results.
    counted = (name for name in own if not name.endswith("num_batches_tracked"))
    missing = [name for name in counted if name not in given]
    wrong = [name for name in (*missing, *other) if not name.startswith(head)]
    if wrong:
        shapes = [f"{n}: {_shape(given.get(n))}, here {_shape(own[n])}" for n in wrong]
        raise OtherNetwork(
            f"{source} is of another network than this {type(network).__name__}: {len(wrong)} of "
            f"its {len(own)} tensors are missing or have another shape ({shorten(shapes)}). "
            "Set --model to the network of the file, or --weights to another file."
        )
    left = sorted(set(weights) - set(own))
    if len(left) > MOST_UNUSED * len(weights):
        raise OtherNetwork(
            f"{source} is of a larger network than this {type(network).__name__}: {len(left)} of "
            f"its {len(weights)} tensors have no place here ({shorten(left)}). "
            "Set --model to the network of the file, or --weights to another file."
        )
    unfit = [name for name in (*missing, *other) if name.startswith(head)]
    taken = {name: value for name, value in given.items() if not (unfit and name.startswith(head))}
    network.load_state_dict(taken, strict=False)
    words = f"begins with the weights of {source}"
    if unfit:
        name = unfit[0]
        reason = f"{name} is {_shape(given.get(name))} there and {_shape(own[name])} here"
        words += f", without its classifier ({reason})"
    if left:
        words += f"; not used: {shorten(left)}"
    return Fitted(f"{words}.", not unfit)


def timm_weights(model: str) -> Weights:
    """timm's weights for one of its networks; timm downloads them at first use."""
    import timm

    listed = model.partition(".")[0] in timm.list_models()
    if not listed or not timm.models.is_model_pretrained(model):
        raise ValueError(
            f"timm has no weights for {model!r}; timm.list_pretrained() names the networks it has "
            "some for. Weights from a file are named by --weights FILE"
        )
    try:
        found: nn.Module = timm.create_model(model, pretrained=True)
    except Exception as error:  # any error of the network, the hub or the disk
        raise ValueError(
            f"timm could not get its weights for {model!r}: {type(error).__name__}: "
            f"{str(error).rstrip('.')}. They are downloaded at first use, which needs a network "
            "connection; without one, download them elsewhere and use --weights FILE"
        ) from error
    return found.state_dict()


def file_hash(file: Path) -> str:
    """SHA-256 of a file."""
    total = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def as_file(state: Mapping[str, Tensor], suffix: str, stride: Place | None = None) -> bytes:
    """The bytes of a .safetensors file, or, with another suffix, of a ``torch.save`` file.

    The metadata of a .safetensors file says where bottlenecks stride.
    """
    if suffix != ".safetensors":
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        return buffer.getvalue()
    with extra("lab"):
        from safetensors.torch import save
    layout = next((name for name, place in LAYOUTS.items() if place == stride), None)
    # safetensors refuses tensors that share memory or do not fill theirs.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    written: bytes = save(tensors, None if layout is None else {"layout": layout})
    return written


# What a file holds.


def one_network(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The weights of the wanted network among several, and words about what was left out.

    Weights without a known prefix are returned unchanged.

    >>> import torch
    >>> one = torch.zeros(1)
    >>> both = {"encoder_q.conv1.weight": one, "encoder_k.conv1.weight": one, "queue": one}
    >>> found, words = one_network({**both, "encoder_q.fc.0.weight": one})
    >>> list(found), words
    (['conv1.weight'], 'of encoder_q alone, without encoder_k, encoder_q.fc, queue')
    """
    prefix = next((p for p in NETWORKS if any(name.startswith(p) for name in weights)), None)
    if prefix is None:
        return dict(weights), ""
    left, kept = set(), {}
    for name, value in weights.items():
        own = name.removeprefix(prefix)
        if own == name:
            left.add(name.partition(".")[0])
        elif prefix in WITH_PROJECTION and own.startswith(PROJECTIONS):
            left.add(prefix + own.partition(".")[0])
        else:
            kept[own] = value
    words = f"of {prefix.removesuffix('.')} alone"
    return kept, f"{words}, without {', '.join(sorted(left))}" if left else words


@contextmanager
def _safetensors(file: Path) -> Iterator[Any]:
    with extra("lab"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(str(file), framework="pt") as opened:
            yield opened
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged, or no .safetensors file: {error}") from error


def _state(found: Any, file: Path) -> Weights:
    """The tensors by name, unwrapped."""
    for wrapper in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if isinstance(found, Mapping) and isinstance(found.get(PARTS[0]), Mapping):
        found = {name: value for part in PARTS for name, value in found.get(part, {}).items()}
    tensors = isinstance(found, Mapping) and all(isinstance(v, Tensor) for v in found.values())
    if not tensors or not found:
        what = (
            f"the entries {shorten(list(map(str, found)))}"
            if isinstance(found, Mapping)
            else "none"
        )
        raise ValueError(
            f"{file} holds no state dict: expected tensors by name, alone or under one of "
            f"{', '.join(WRAPPERS)}, found {what}"
        )
    return _without_prefixes(found)


def _without_prefixes(found: Weights) -> Weights:
    """Without the prefixes of all wrappers, in whatever order they were put around a network."""
    for prefix in PREFIXES:
        if found and all(name.startswith(prefix) for name in found):
            return _without_prefixes({n.removeprefix(prefix): v for n, v in found.items()})
    return found


def _shape(value: Tensor | None) -> str:
    return "absent" if value is None else str(tuple(value.shape))


# Where bottlenecks stride.
#
# The first ResNets halve their maps in the 1x1 convolution that a stage begins with, those of
# torchvision and timm in the 3x3 after it. Weights of one layout fit the other by name and shape
# but compute something else, so the network has to match the file.


def move_stride(network: nn.Module, to: Place) -> None:
    """Move the stride of every bottleneck to its first 1x1 or to its 3x3 convolution.

    Shapes of weights and maps do not change. Only bottlenecks of timm's or torchvision's ResNet are
    known; if there are none, or they stride elsewhere, an error is raised and nothing is moved.

    >>> from torchvision.models import resnet50
    >>> network = resnet50()
    >>> move_stride(network, "1x1")
    >>> network.layer2[0].conv1.stride, network.layer2[0].conv2.stride
    ((2, 2), (1, 1))
    """
    if to not in ("1x1", "3x3"):
        raise ValueError(f"A bottleneck strides in its 1x1 or in its 3x3 convolution, not {to!r}.")
    blocks = _bottlenecks(network)
    strides = [_stride(block) for block in blocks]
    for block, stride in zip(blocks, strides, strict=True):
        first, second = (stride, (1, 1)) if to == "1x1" else ((1, 1), stride)
        block.conv1.stride, block.conv2.stride = first, second


def _bottlenecks(network: nn.Module) -> list[Any]:
    # A class whose module was never imported has no instances.
    kinds = tuple(sys.modules[home].Bottleneck for home in HOMES if home in sys.modules)
    found = [module for module in network.modules() if isinstance(module, kinds)]
    if not found:
        raise ValueError(
            f"This {type(network).__name__} has no bottlenecks of timm's or torchvision's ResNet, "
            "so there is no stride to move. A stride in the 1x1, asked for by --stride 1x1 or by "
            "the metadata of a file of weights, is for networks such as resnet50: set --model to "
            "one of them, or --weights to another file."
        )
    return found


def _stride(block: Any) -> tuple[int, int]:
    """The stride of a bottleneck's first two convolutions, which must be its whole stride."""
    first, second = block.conv1.stride, block.conv2.stride
    stride = (first[0] * second[0], first[1] * second[1])
    if stride != (block.stride, block.stride):
        raise ValueError(
            f"A bottleneck of this network strides by {block.stride}, its convolutions by "
            f"{stride[0]}: another layer does the rest, such as the pooling of networks with "
            "anti-aliasing (resnetaa50). Only a stride of the convolutions can be moved: set "
            "--model to a network such as resnet50."
        )
    return stride
