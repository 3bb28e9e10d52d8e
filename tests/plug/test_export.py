"""What leaves training is the plain model: every exporter takes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision.models as tv
from timm.models.levit import LevitDistilled
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from batchformer import attach, export

BUILD: dict[str, Callable[[], nn.Module]] = {
    "torchvision resnet": lambda: tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5),
    "timm vit": lambda: timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5
    ),
    "timm levit": lambda: LevitDistilled(
        img_size=64, embed_dim=(16, 24), key_dim=8, depth=(1, 1), num_heads=(2, 3), num_classes=5
    ),
}
X = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def images(name: str) -> Tensor:
    return X[..., :32, :32] if "vit" in name and "levit" not in name else X


def trained(name: str, **options: Any) -> nn.Module:
    """An attached model whose running statistics have moved, left in training."""
    torch.manual_seed(0)
    model = attach(BUILD[name](), verbose=False, **options)
    for _ in range(3):
        model(images(name))
    return model


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # exporters announce their own deprecations
        yield


@pytest.mark.parametrize("name", BUILD)
def test_export_gives_a_plain_copy_and_leaves_training_alone(name: str) -> None:
    model = trained(name)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    plain = export(model, example=images(name))
    assert model.training and not plain.training
    assert len(model(images(name))) == 6, "training goes on"
    model.load_state_dict(state)
    fresh = BUILD[name]()
    fresh.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(fresh.eval()(images(name)), model.eval()(images(name)))
    assert {type(m) for m in plain.modules()} == {type(m) for m in fresh.modules()}
    assert not {p.data_ptr() for p in plain.parameters()} & {
        p.data_ptr() for p in model.parameters()
    }


@pytest.mark.parametrize("name", BUILD)
def test_torch_export_takes_the_plain_copy_at_any_batch_size(name: str) -> None:
    x = images(name)
    plain = export(trained(name), example=x)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(plain, (x,), dynamic_shapes=({0: batch},))
    assert set(program.state_dict) == set(plain.state_dict())
    for n in (3, 1):
        torch.testing.assert_close(program.module()(x[:n]), plain(x[:n]))


@pytest.mark.parametrize("options", [{}, {"at": ["layer3", "layer4"], "batch_norm": "per_stream"}])
@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_takes_the_attached_model_in_eval(
    options: dict[str, Any], strict: bool
) -> None:
    model = trained("torchvision resnet", **options).eval()
    program = torch.export.export(model, (X,), strict=strict)
    torch.testing.assert_close(program.module()(X), model(X))
    computed = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.layer_norm.default not in computed, "BatchFormer is not in the graph"


@pytest.mark.parametrize("name", ["torchvision resnet", "timm vit"])
def test_onnx_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x = images(name)
    plain = export(trained(name), example=x)
    path = tmp_path / "model.onnx"
    torch.onnx.export(plain, (x,), str(path), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(given), plain(x).detach(), rtol=1e-4, atol=1e-4)


def test_torchscript_takes_the_plain_copy(tmp_path: Path) -> None:
    plain = export(trained("torchvision resnet"), example=X)
    path = str(tmp_path / "model.pt")
    torch.jit.save(torch.jit.script(plain), path)
    loaded = torch.jit.load(path)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loaded(X), plain(X))
    assert set(loaded.state_dict()) == set(plain.state_dict())


def test_torchscript_traces_the_attached_model_in_eval() -> None:
    model = trained("torchvision resnet").eval()
    traced = torch.jit.trace(model, X)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(X), model(X))


def test_a_compiled_and_attached_model_exports_plain() -> None:
    model = trained("torchvision resnet")
    compiled: Any = torch.compile(model, backend="eager")
    plain = export(compiled, example=X)
    assert type(plain) is tv.ResNet
    assert torch.equal(plain(X), model.eval()(X))


def test_what_differs_in_eval_is_not_exported() -> None:
    class Restless(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Restless.calls += 1
            return x + Restless.calls

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), Restless())
    attach(model, verbose=False)
    with pytest.raises(RuntimeError, match="different outputs"):
        export(model)
