"""What leaves training is the plain model: every exporter takes it."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision.models as tv
from timm.models.levit import LevitDistilled
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from batchformer import attach, check, detach, export
from batchformer.plug import example
from batchformer.plug.classifier import AttachError
from helpers.networks import BodyAndHead

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


# A plain copy is what its family builds, so one family shows what an exporter makes of it.


def test_torch_export_takes_the_plain_copy_at_any_batch_size() -> None:
    x = images("timm levit")
    plain = export(trained("timm levit"), example=x)
    twin = copy.deepcopy(plain)  # torch 2.9 leaves tensors without values in LeViT's own cache
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(plain, (x,), dynamic_shapes=({0: batch},))
    assert set(program.state_dict) == set(plain.state_dict())
    for n in (3, 1):
        torch.testing.assert_close(program.module()(x[:n]), twin(x[:n]))


@pytest.mark.parametrize(
    ("strict", "options"),
    [(False, {}), (True, {"at": ["layer3", "layer4"], "batch_norm": "per_stream"})],
)
def test_torch_export_takes_the_attached_model_in_eval(
    strict: bool, options: dict[str, Any]
) -> None:
    model = trained("torchvision resnet", **options).eval()
    program = torch.export.export(model, (X,), strict=strict)
    torch.testing.assert_close(program.module()(X), model(X))
    computed = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.layer_norm.default not in computed, "BatchFormer is not in the graph"


def test_onnx_gives_the_same_numbers(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x = images("timm vit")
    plain = export(trained("timm vit"), example=x)
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


def test_torchscript_of_the_attached_model_is_refused_in_words() -> None:
    with pytest.raises(AttachError, match=r"Script what export\(model\) returns"):
        torch.jit.script(trained("torchvision resnet"))


def test_torchscript_traces_the_attached_model_in_eval() -> None:
    model = trained("torchvision resnet").eval()
    traced = torch.jit.trace(model, X)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(X), model(X))


class Pair(BodyAndHead):
    """A model of two inputs, for which no batch can be guessed."""

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x) + shift)
        return logits


def test_the_example_of_attach_is_remembered_beside_the_model() -> None:
    batch = (torch.randn(1000, 4), torch.randn(1000, 8))
    model = attach(Pair(), example=batch, verbose=False)
    alive = [weakref.ref(part) for part in batch]
    held = [part.untyped_storage().data_ptr() for part in batch]
    kept = example._REMEMBERED[model]
    assert [len(part) for part in kept.args] == [2, 2]
    assert not {part.untyped_storage().data_ptr() for part in kept.args} & set(held)
    assert all(part.untyped_storage().nbytes() < 100 for part in kept.args), "not the whole batch"
    del batch
    gc.collect()
    assert all(reference() is None for reference in alive)
    assert type(export(model)) is Pair
    assert type(export(model.double())) is Pair, "in the dtype that the model has now"
    # Nothing of it travels: a copy asks for an example, as any model does.
    file = io.BytesIO()
    torch.save(model, file)
    assert len(file.getvalue()) < 30_000
    other = copy.deepcopy(model)
    assert other not in example._REMEMBERED
    with pytest.raises(ValueError, match="Pass example="):
        export(other)
    detach(model)
    assert model not in example._REMEMBERED
    gone = weakref.ref(
        attach(Pair(), example=(torch.randn(2, 4), torch.randn(2, 8)), verbose=False)
    )
    gc.collect()
    assert gone() is None


class Around(nn.Module):
    """A wrapper as libraries write it: it passes on what it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(*args)  # type: ignore[no-any-return]


def test_the_example_of_a_model_that_was_wrapped_later_is_found() -> None:
    batch = (torch.randn(3, 4), torch.randn(3, 8))
    model = Around(attach(Pair(), example=batch, verbose=False))
    assert check(model) and type(export(model).model) is Pair


def test_a_nested_example_is_remembered_too() -> None:
    class OfADict(Pair):
        def forward(self, batch: dict[str, Any]) -> Tensor:  # type: ignore[override]
            return super().forward(batch["table"]["x"], batch["shift"])

    batch = {"table": {"x": torch.randn(6, 4)}, "shift": torch.randn(6, 8)}
    model = attach(OfADict(), example=(batch,), verbose=False)
    assert export(model)(batch).shape == (6, 3) and check(model)


def test_an_example_that_the_model_no_longer_accepts_is_not_insisted_on() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    attach(model, example=torch.randn(3, 4), verbose=False)
    model[0] = nn.Linear(6, 8)
    assert export(model)(torch.randn(2, 6)).shape == (2, 3) and check(model)


class Keeps(BodyAndHead):
    """Stores what it computed, for a penalty or a figure."""

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.body(x)
        self.logits: Tensor = self.head(self.features)
        self.seen = {"norms": [self.features.norm(dim=1)]}
        return self.logits


def test_what_a_model_has_stored_in_training_does_not_stop_export() -> None:
    model = attach(Keeps(), verbose=False)
    model(torch.randn(5, 4))
    plain = export(model)
    assert type(plain.logits) is Tensor and not plain.logits.requires_grad
    assert model.logits.requires_grad and model.logits.grad_fn is not None


def test_a_checkpoint_is_not_taken_for_a_state_dict() -> None:
    model = attach(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), verbose=False)
    checkpoint = {"state_dict": model.state_dict(), "optimizer": {"state": {0: {}}}, "epoch": 3}
    with pytest.raises(ValueError, match=r"export\(checkpoint\['state_dict'\]\)"):
        export(checkpoint)
    assert len(export(checkpoint["state_dict"])) == 4  # type: ignore[arg-type]
    assert list(export(model[1].state_dict())) == ["weight", "bias"]


def test_a_state_dict_keeps_a_module_of_the_same_name_and_the_versions() -> None:
    model = tv.mnasnet0_5(num_classes=5)  # which cannot be loaded without its version
    plain = nn.ModuleDict({"batchformer": model, "other": nn.Linear(2, 2)})
    keys = list(plain.state_dict())
    attach(model, example=X, verbose=False)
    state = export(plain.state_dict())
    assert list(state) == keys
    tv.mnasnet0_5(num_classes=5).load_state_dict(export(model.state_dict()))


def test_a_failed_guess_is_told_once() -> None:
    with pytest.raises(ValueError, match="No guessed input was accepted by Pair") as told:
        attach(Pair())
    assert told.value.__cause__ is None and told.value.__context__ is None


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


def test_a_model_that_draws_in_eval_is_exported() -> None:
    class Sampling(nn.Module):
        """Dropout at test, for an estimate of uncertainty."""

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

    model = nn.Sequential(nn.Linear(8, 64), Sampling(), nn.Linear(64, 4))
    attach(model, verbose=False)
    state = torch.get_rng_state()
    plain = export(model)
    assert torch.equal(torch.get_rng_state(), state) and not plain.training
