"""Weights are found, read, fitted to a network, and written; strides are moved."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.models import resnet as timms
from torch import Tensor, nn
from torch.nn.functional import conv2d

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.methods.moco import MocoV3
from batchformer.lab.models.build import build_model
from batchformer.lab.models.weights import (
    Place,
    as_file,
    file_hash,
    find_weights,
    fit_weights,
    move_stride,
    one_network,
    read_stride,
    read_weights,
    timm_weights,
)


def equal(a: dict[str, Tensor], b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return build_model("digits_net", 5)


def in_parts(state: dict[str, Tensor]) -> dict[str, Any]:
    head = {f"module.{k}": v for k, v in state.items() if k.startswith("fc.")}
    body = {f"module.{k}": v for k, v in state.items() if not k.startswith("fc.")}
    return {"epoch": 3, "state_dict_best": {"feat_model": body, "classifier": head}}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 1},
        lambda state: {"model": {f"_orig_mod.module.{k}": v for k, v in state.items()}},
        in_parts,
    ],
)
def test_state_dicts_in_what_scripts_save(tmp_path: Path, source: nn.Module, wrap: Any) -> None:
    torch.save(wrap(source.state_dict()), tmp_path / "w.pth")
    stored = read_weights(tmp_path / "w.pth")
    assert equal(source.state_dict(), stored.tensors) and stored.words == ""
    assert stored.stride is read_stride(tmp_path / "w.pth") is None


@pytest.mark.parametrize(
    ("metadata", "stride"),
    [
        ({"layout": "stride_in_1x1"}, "1x1"),
        ({"layout": "stride_in_3x3"}, "3x3"),
        ({"format": "pt"}, None),
        (None, None),
    ],
)
def test_safetensors_may_say_where_bottlenecks_stride(
    tmp_path: Path, source: nn.Module, metadata: dict[str, str] | None, stride: str | None
) -> None:
    file = tmp_path / "w.safetensors"
    save_file(source.state_dict(), file, metadata=metadata)
    stored = read_weights(file)
    assert stored.stride == read_stride(file) == stride
    assert equal(source.state_dict(), stored.tensors)


@pytest.mark.parametrize("read", [read_weights, read_stride])
def test_an_unknown_layout_is_refused_unless_somebody_says_it(
    tmp_path: Path, source: nn.Module, read: Any
) -> None:
    file = tmp_path / "w.safetensors"
    save_file(source.state_dict(), file, metadata={"layout": "stride_1x1"})
    words = r"'stride_1x1'.*stride_in_1x1, stride_in_3x3.*--stride"
    with pytest.raises(ValueError, match=words):
        read(file)
    assert read_stride(file, stride_told=True) is None
    assert equal(source.state_dict(), read_weights(file, stride_told=True).tensors)
    file.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="damaged"):
        read(file)


def test_half_precision_arrives_in_the_type_of_the_network(source: nn.Module) -> None:
    network = build_model("digits_net", 5)
    halves = {k: v.half() if v.is_floating_point() else v for k, v in source.state_dict().items()}
    fit_weights(network, halves, "file")
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    for name, value in network.state_dict().items():
        assert torch.equal(value, halves[name].to(value.dtype)), name


class Anything:
    """What a file of weights has no business to hold."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"state_dict": {"a": 1}}, "no state dict.*the entries a"),
        ({}, "no state dict"),
        ([torch.zeros(1)], "no state dict"),
        ({"weights": Anything()}, r"only tensors are loaded.*torch\.save"),
    ],
)
def test_files_without_weights(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=words):
        read_weights(tmp_path / "w.pth")


@pytest.mark.parametrize("content", [b"no weights", b"hello world\n", b"epoch,loss\n0,1.5\n", b""])
def test_a_damaged_or_empty_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pth").write_bytes(content)
    words = "holds more than weights, or is damaged" if content else "is empty: name another"
    with pytest.raises(ValueError, match=rf"w\.pth {words}") as told:
        read_weights(tmp_path / "w.pth")
    assert "weights_only" not in str(told.value), "nobody is told to let the file run code"


def test_all_fits(source: nn.Module) -> None:
    network: Any = build_model("digits_net", 5)
    fitted = fit_weights(network, source.state_dict(), "file")
    assert fitted.classifier and fitted.words == "begins with the weights of file."
    assert equal(network.state_dict(), source.state_dict())


@pytest.mark.parametrize("there", [True, False])
def test_another_classifier_is_dropped_and_said(source: nn.Module, there: bool) -> None:
    network: Any = build_model("digits_net", 4)
    before = network.fc.weight.clone(), network.fc.bias.clone()
    weights = {k: v for k, v in source.state_dict().items() if there or not k.startswith("fc.")}
    fitted = fit_weights(network, {**weights, "ema": torch.zeros(1)}, "file")
    shape = r"(5, 64)" if there else "absent"
    assert not fitted.classifier and "not used: ema" in fitted.words
    assert f"without its classifier (fc.weight is {shape} there and (4, 64) here)" in fitted.words
    assert torch.equal(network.fc.weight, before[0]) and torch.equal(network.fc.bias, before[1])
    body = {k: v for k, v in network.state_dict().items() if not k.startswith("fc.")}
    assert body and all(torch.equal(source.state_dict()[k], v) for k, v in body.items())


def test_half_a_classifier_is_dropped_whole(source: nn.Module) -> None:
    """A bias of the same length says nothing if the weights are of other features."""
    network: Any = build_model("digits_net", 5)
    before = network.fc.bias.clone()
    weights = {**source.state_dict(), "fc.weight": torch.zeros(5, 63)}
    assert not fit_weights(network, weights, "file").classifier
    assert torch.equal(network.fc.bias, before)


def test_counters_may_be_missing() -> None:
    state = build_model("resnet10", 3).state_dict()
    weights = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    assert fit_weights(build_model("resnet10", 3), weights, "file").classifier


def test_another_network_is_refused_and_nothing_is_loaded(source: nn.Module) -> None:
    network = build_model("resnet10", 5)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    other = build_model("resnet18", 5).state_dict()
    changed = {**before, "conv1.weight": torch.zeros(64, 3, 3, 3)}
    with pytest.raises(ValueError, match=r"conv1\.weight: \(64, 3, 3, 3\), here \(64, 3, 7, 7\)"):
        fit_weights(network, changed, "file")
    for weights in (source.state_dict(), {k: v for k, v in other.items() if "layer1" not in k}):
        with pytest.raises(
            ValueError, match=r"file is of another network than this ResNet.*--model"
        ):
            fit_weights(network, weights, "file")
    assert equal(before, network.state_dict())


def test_a_larger_network_is_refused_though_all_of_this_one_is_in_it() -> None:
    network, larger = build_model("resnet18", 5), build_model("resnet34", 5)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    assert before.keys() < larger.state_dict().keys()
    words = r"file is of a larger network.*96 of its 218 tensors have no place here.*--model"
    with pytest.raises(ValueError, match=words):
        fit_weights(network, larger.state_dict(), "file")
    assert equal(before, network.state_dict())


def test_experts_have_several_classifiers() -> None:
    network, other = (build_model("ride_resnet32", k, experts=2) for k in (3, 4))
    fitted = fit_weights(network, other.state_dict(), "file")
    assert not fitted.classifier and "classifiers.0" in fitted.words
    weight = "branches.1.layer3.0.conv1.weight"
    assert torch.equal(network.state_dict()[weight], other.state_dict()[weight])


def test_where_a_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"w\.pth or {tmp_path}/data/w\.pth.*--weights"):
        find_weights("w.pth")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/w.pth").write_bytes(b"far")
    assert find_weights("w.pth") == tmp_path / "data/w.pth"
    (tmp_path / "w.pth").write_bytes(b"near")
    assert find_weights("w.pth").read_bytes() == b"near"
    assert file_hash(Path("w.pth")) == hashlib.sha256(b"near").hexdigest()
    with pytest.raises(FileNotFoundError, match=r"no file of weights /nowhere/w\.pth\."):
        find_weights("/nowhere/w.pth")


def test_a_file_beside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name in the folder of the data, or below a folder that holds several."""
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path / "all"))
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "mine/places_lt"
    root.mkdir(parents=True)
    places = f"{root}/places_lt/w.pth or {root}/w.pth or {tmp_path}/all/places_lt/w.pth"
    with pytest.raises(FileNotFoundError, match=rf"{places}.*--weights FILE.*--weights timm"):
        find_weights("places_lt/w.pth", str(root))
    (root / "w.pth").write_bytes(b"beside")
    for folder in (root, root.parent):
        assert find_weights("places_lt/w.pth", str(folder)) == root / "w.pth"
    with pytest.raises(FileNotFoundError, match=r"weights places_lt/w\.pth or [^ ]*/all/"):
        find_weights("places_lt/w.pth", str(tmp_path / "cifar100_lt.npz"))


def test_timms_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("resnet32", "resnet152.no_such_tag"):
        with pytest.raises(ValueError, match="timm has no weights"):
            timm_weights(name)

    def unreachable(name: str, pretrained: bool) -> nn.Module:
        assert pretrained
        raise ConnectionError("no route")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(ValueError, match=r"no route.*needs a network connection.*--weights FILE"):
        timm_weights("resnet152.tv_in1k")
    made = build_model("resnet10", 3)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: made)
    assert equal(made.state_dict(), timm_weights("resnet18"))


# Checkpoints with several networks.


State = dict[str, Tensor]


def under(prefix: str, state: State) -> State:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def body(source: nn.Module) -> State:
    return {k: v for k, v in source.state_dict().items() if not k.startswith("fc.")}


def moco_v2(source: nn.Module) -> State:
    """As the authors' code saves it: projections in the place of classifiers."""
    head = {"fc.0.weight": torch.ones(64, 64), "fc.2.weight": torch.ones(8, 64)}
    queries = {**body(source), **head}
    keys = {name: torch.zeros_like(value) for name, value in queries.items()}
    state = {**under("encoder_q", queries), **under("encoder_k", keys)}
    return under("module", {**state, "queue": torch.ones(8, 4), "queue_ptr": torch.zeros(1)})


def moco_v3(source: nn.Module) -> State:
    base = {**body(source), "fc.0.weight": torch.ones(64, 64), "fc.1.bias": torch.ones(64)}
    momentum = {name: torch.zeros_like(value) for name, value in base.items()}
    state = {**under("base_encoder", base), **under("momentum_encoder", momentum)}
    return under("module", {**state, "predictor.0.weight": torch.ones(8, 8)})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (moco_v2, "of encoder_q alone, without encoder_k, encoder_q.fc, queue, queue_ptr"),
        (moco_v3, "of base_encoder alone, without base_encoder.fc, momentum_encoder, predictor"),
    ],
)
@pytest.mark.parametrize("suffix", [".pth.tar", ".safetensors"])
def test_checkpoints_of_moco(
    tmp_path: Path, source: nn.Module, made: Any, words: str, suffix: str
) -> None:
    file = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file({k: v.contiguous() for k, v in made(source).items()}, file)
    else:
        torch.save({"epoch": 200, "arch": "resnet50", "state_dict": made(source)}, file)
    stored = read_weights(file)
    assert stored.words == words
    wanted = body(source)
    assert equal(wanted, stored.tensors)
    other = build_model("digits_net", 3)
    fitted = fit_weights(other, stored.tensors, "file")
    assert not fitted.classifier and "without its classifier" in fitted.words
    assert all(torch.equal(other.state_dict()[key], wanted[key]) for key in wanted)


def test_a_projection_with_as_many_outputs_as_classes_is_no_classifier(source: nn.Module) -> None:
    """MoCo-v1 has one layer, of 128 channels; a data set may have 128 classes."""
    state = under("encoder_q", source.state_dict())
    found, words = one_network(state)
    assert found.keys() == body(source).keys() and "without encoder_q.fc" in words


@pytest.mark.parametrize("prefix", ["backbone", "network"])
def test_networks_beside_heads_keep_their_classifier(source: nn.Module, prefix: str) -> None:
    state = {**under(prefix, source.state_dict()), "decoder.weight": torch.ones(2)}
    found, words = one_network(state)
    assert found.keys() == source.state_dict().keys()
    assert words == f"of {prefix} alone, without decoder"


def test_our_own_checkpoints(tmp_path: Path, source: nn.Module) -> None:
    method = MocoV3(
        source, ModuleConfig(), 0, MethodConfig(dim=4, projection_hidden=8, projection_layers=2)
    )
    state = {"method": method.state_dict(), "optimizers": {}, "counters": {"update": 3}}
    torch.save(state, tmp_path / "w.pt")
    stored = read_weights(tmp_path / "w.pt")
    assert equal(source.state_dict(), stored.tensors)
    for part in ("key_network", "predictor", "encoder"):
        assert part in stored.words


# Written files.


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
@pytest.mark.parametrize("stride", [None, "1x1"])
def test_what_is_written_is_read(tmp_path: Path, suffix: str, stride: Place | None) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(memory_format=torch.channels_last)
    state = model.state_dict() | {"shared": model[0].weight, "turned": model[0].weight.T}
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(as_file(state, suffix, stride))
    stored = read_weights(file)
    assert equal(state, stored.tensors)
    assert stored.stride == (stride if suffix == ".safetensors" else None)


# Strides, against a ResNet written with slices.


def of_timm(**options: Any) -> Any:
    """A narrow ResNet of one or two bottlenecks a stage."""
    sizes: dict[str, Any] = {"channels": (4, 8, 8, 12), "num_classes": 5, **options}
    return timms.ResNet(timms.Bottleneck, (2, 1, 2, 1), zero_init_last=False, **sizes)


def of_torchvision() -> Any:
    kind = torchvision.models.resnet.Bottleneck
    return torchvision.models.ResNet(kind, [1, 1, 2, 1], num_classes=5, width_per_group=4)


NETWORKS = {
    "timm": of_timm,
    "timm, groups": lambda: of_timm(cardinality=4, base_width=32),
    "timm, pooled shortcut": lambda: of_timm(avg_down=True),
    "timm, dilated": lambda: of_timm(output_stride=16),
    "torchvision": of_torchvision,
}


def drawn(make: Any) -> Any:
    """A network in double precision whose normalisation does something."""
    torch.manual_seed(3)
    network = make().double().eval()
    norms: list[Any] = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.weight.data.uniform_(0.5, 1.5)
        norm.bias.data.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return network


def normalised(x: Tensor, norm: Any) -> Tensor:
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    done: Tensor = x * scale[:, None, None] + shift[:, None, None]
    return done


def first_layout(block: Any, x: Tensor) -> Tensor:
    """The bottleneck of the first ResNets: every other row and column, then no stride at all."""
    seen = x[:, :, :: block.stride, :: block.stride]
    y = normalised(conv2d(seen, block.conv1.weight), block.bn1).relu()
    wide = block.conv2.dilation
    y = conv2d(y, block.conv2.weight, padding=wide, dilation=wide, groups=block.conv2.groups)
    y = normalised(y, block.bn2).relu()
    y = normalised(conv2d(y, block.conv3.weight), block.bn3)
    return (y + (x if block.downsample is None else block.downsample(x))).relu()


def whole(network: Any, x: Tensor) -> Tensor:
    x = network.maxpool(normalised(network.conv1(x), network.bn1).relu())
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        for block in stage:
            x = first_layout(block, x)
    logits: Tensor = network.fc(x.mean((2, 3)))
    return logits


@pytest.mark.parametrize("side", [64, 75])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_is_that_of_the_first_resnets(name: str, side: int) -> None:
    network = drawn(NETWORKS[name])
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    shapes = {key: value.shape for key, value in network.state_dict().items()}
    with torch.no_grad():
        stock, expected = network(x), whole(network, x)
        for _ in range(2):  # doing it again changes nothing
            move_stride(network, "1x1")
            torch.testing.assert_close(network(x), expected, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(stock, expected, rtol=1e-3)
        for _ in range(2):
            move_stride(network, "3x3")
            assert torch.equal(network(x), stock)
    assert shapes == {key: value.shape for key, value in network.state_dict().items()}


def test_experts_are_made_of_bottlenecks_too() -> None:
    network: Any = build_model("ride_resnet50", 3, experts=2)
    move_stride(network, "1x1")
    blocks = [network.shared.layer2[0], *(branch.layer4[0] for branch in network.branches)]
    assert all(b.conv1.stride == (2, 2) and b.conv2.stride == (1, 1) for b in blocks)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_networks_without_bottlenecks_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"no bottlenecks of timm's or torchvision's.*--model"):
        move_stride(build_model(name, 3), "1x1")


@pytest.mark.parametrize("layer", [nn.AvgPool2d, timm.layers.BlurPool2d])
def test_a_stride_of_another_layer_is_refused_and_nothing_moves(layer: type[nn.Module]) -> None:
    network: Any = of_timm(aa_layer=layer)
    before = [m.stride for m in network.modules() if isinstance(m, nn.Conv2d)]
    with pytest.raises(ValueError, match=r"strides by 2, its convolutions by 1.*anti-aliasing"):
        move_stride(network, "1x1")
    assert before == [m.stride for m in network.modules() if isinstance(m, nn.Conv2d)]


def test_there_are_two_places() -> None:
    with pytest.raises(ValueError, match="not '7x7'"):
        move_stride(of_timm(), "7x7")  # type: ignore[arg-type]
