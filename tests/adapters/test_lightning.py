"""BatchFormerCallback under the real Lightning Trainer, on tiny data."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

lightning = pytest.importorskip("lightning.pytorch")

from batchformer import attach, detach, export, match, param_groups  # noqa: E402
from batchformer.adapters.lightning import BatchFormerCallback  # noqa: E402
from batchformer.nn.module import encoders_of  # noqa: E402
from batchformer.plug.classifier import AttachError  # noqa: E402
from helpers.networks import evaluated, small_network, three_classes  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(num_workers|log_every_n_steps|val_dataloader|LeafSpec).*"
)


class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """What a user writes: one line serves training and validation."""

    def __init__(self) -> None:
        super().__init__()
        self.build()
        self.rows: dict[str, list[int]] = {"train": [], "val": []}
        self.seen: list[float] = []

    def build(self) -> None:
        self.model = small_network()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model(x))

    def loss(self, batch: Any, stage: str) -> Tensor:
        x, y = batch
        logits = self(x)
        self.rows[stage].append(len(logits))
        return F.cross_entropy(logits, match(logits, y))

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = self.loss(batch, "train")
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", self.loss(batch, "val"))

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(param_groups(self, lr=0.1), momentum=0.9)


class Itself(Lit):
    """The LightningModule is the network: no attribute holds it."""

    def build(self) -> None:
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.body(x).relu()))


def trainer(*callbacks: Any, **options: Any) -> Any:
    defaults = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 1,
    }
    return lightning.Trainer(callbacks=list(callbacks), **(defaults | options))


def test_training_lowers_the_loss_and_exports_the_plain_model(tmp_path: Path) -> None:
    lit, file = Lit(), tmp_path / "new folder" / "plain.pt"
    trainer(BatchFormerCallback(export_to=file, verbose=False), max_epochs=12).fit(
        lit, three_classes(), three_classes()
    )
    assert set(lit.rows["train"]) == {16}
    assert set(lit.rows["val"]) == {8}
    assert sum(lit.seen[-3:]) < 0.5 * sum(lit.seen[:3])

    plain = small_network()
    plain.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(evaluated(plain), evaluated(lit.model))
    assert [path.name for path in file.parent.iterdir()] == ["plain.pt"]


def test_batchformer_is_trained_at_its_own_rate() -> None:
    """Attached before configure_optimizers, so the optimizer holds its parameters."""
    lit = Lit()
    session = trainer(BatchFormerCallback(verbose=False))
    session.fit(lit, three_classes())
    groups = {group["name"]: group for group in session.optimizers[0].param_groups}
    (module,) = encoders_of(lit)
    assert groups["batchformer"]["lr"] == pytest.approx(0.01)
    assert {id(p) for p in groups["batchformer"]["params"]} == {id(p) for p in module.parameters()}


def test_resuming_gives_what_not_stopping_gives(tmp_path: Path) -> None:
    def callback() -> Any:
        torch.manual_seed(3)
        return BatchFormerCallback(dropout=0.0, verbose=False)

    straight = Lit()
    trainer(callback(), max_epochs=4).fit(straight, three_classes())
    stopped, first = Lit(), trainer(callback(), max_epochs=2)
    first.fit(stopped, three_classes())
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Lit()
    trainer(callback(), max_epochs=4).fit(
        resumed, three_classes(), ckpt_path=tmp_path / "half.ckpt"
    )
    assert straight.seen[6:] == resumed.seen
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_second_fit_attaches_no_second_time() -> None:
    lit, callback = Lit(), BatchFormerCallback(verbose=False)
    trainer(callback).fit(lit, three_classes())
    (module,) = encoders_of(lit)
    trainer(callback).fit(lit, three_classes())
    trainer(BatchFormerCallback(verbose=False)).fit(lit, three_classes())
    assert encoders_of(lit) == [module]


def test_a_network_that_was_attached_before_is_taken_as_it_is() -> None:
    lit = Lit()
    attach(lit.model, dropout=0.0, verbose=False)
    lit.model = nn.Sequential(lit.model)  # wrapped since, as by PEFT
    (module,) = encoders_of(lit)
    trainer(BatchFormerCallback(verbose=False)).fit(lit, three_classes())
    assert encoders_of(lit) == [module] and set(lit.rows["train"]) == {16}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lit, Path]:
    """A trained module, and its checkpoint."""
    lit, session = Lit(), trainer(BatchFormerCallback(verbose=False))
    session.fit(lit, three_classes())
    file = tmp_path_factory.mktemp("checkpoint") / "last.ckpt"
    session.save_checkpoint(file)
    return lit, file


def test_a_plain_module_is_tested_from_a_checkpoint(saved: tuple[Lit, Path]) -> None:
    lit, file = saved
    plain, callback = Lit(), BatchFormerCallback(verbose=False)
    trainer(callback).test(plain, three_classes(), verbose=False, ckpt_path=file)
    assert not encoders_of(plain)
    assert torch.equal(evaluated(plain.model), evaluated(lit.model))
    # The tolerance ends with the test: afterwards the module is strict again.
    with pytest.raises(RuntimeError, match="batchformer"):
        plain.load_state_dict(lit.state_dict())


def test_the_lightning_module_itself_is_the_network(tmp_path: Path) -> None:
    lit, file = Itself(), tmp_path / "plain.pt"
    callback = BatchFormerCallback(model=None, at="head", export_to=file, verbose=False)
    trainer(callback).fit(lit, three_classes())
    assert set(lit.rows["train"]) == {16}
    plain = Itself()
    plain.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(evaluated(plain), evaluated(lit))
    assert list(detach(lit).state_dict()) == list(plain.state_dict())


def test_attach_options_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    lit = Lit()
    callback = BatchFormerCallback(at="0", heads=2, layers=2, example=torch.randn(4, 6))
    trainer(callback).fit(lit, three_classes())
    (module,) = encoders_of(lit)
    assert (module.dim, module.heads, len(module.layers)) == (6, 2, 2)
    assert "BatchFormer attached before '0'" in capsys.readouterr().out


class WithoutModule(Lit):
    """Builds its optimizer from one parameter by name, so not from BatchFormer's."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.model.get_parameter("2.weight")], lr=0.1)


def test_a_failed_check_stops_training_with_the_table() -> None:
    lit = WithoutModule()
    with pytest.raises(RuntimeError, match=r"FAIL +is it in the optimizer\? +0 of 12 parameters"):
        trainer(BatchFormerCallback(verbose=False)).fit(lit, three_classes())
    assert not lit.seen
    lit = WithoutModule()
    trainer(BatchFormerCallback(check=False, verbose=False)).fit(lit, three_classes())
    assert len(lit.seen) == 3


class Noise(nn.Module):
    """From a generator that no module holds, so that check cannot hold it fixed."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=OUTSIDE)


OUTSIDE = torch.Generator()


class Noisy(Lit):
    def build(self) -> None:
        self.model = small_network().insert(1, Noise())


def test_what_is_not_proven_causes_a_warning_and_training_continues() -> None:
    lit = Noisy()
    with pytest.warns(UserWarning, match="not proven that BatchFormer is acting"):
        trainer(BatchFormerCallback(verbose=False)).fit(lit, three_classes())
    assert len(lit.seen) == 3


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"features": x, "target": index % 3, "weight": 1.0}


class Named(Lit):
    def loss(self, batch: Any, stage: str) -> Tensor:
        return super().loss((batch["features"], batch["target"]), stage)


def test_inputs_says_what_the_network_is_called_with() -> None:
    lit = Named()
    callback = BatchFormerCallback(inputs=lambda batch: batch["features"], verbose=False)
    trainer(callback).fit(lit, DataLoader(Rows(), batch_size=4))
    assert set(lit.rows["train"]) == {8}


def test_a_batch_that_the_network_does_not_take_asks_for_inputs() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)arguments features, .*pass inputs="):
        trainer(BatchFormerCallback(verbose=False)).fit(Named(), DataLoader(Rows(), batch_size=4))


AVERAGES = ("EMAWeightAveraging", "StochasticWeightAveraging")


@pytest.mark.parametrize("name", [one for one in AVERAGES if hasattr(lightning.callbacks, one)])
def test_callbacks_that_average_weights_come_later(name: str) -> None:
    def average() -> Any:
        options = {"swa_lrs": 0.1} if name.startswith("Stochastic") else {}
        return getattr(lightning.callbacks, name)(**options)

    with pytest.raises(AttachError, match=f"{name} stands before it .* BatchFormerCallback first"):
        trainer(average(), BatchFormerCallback(verbose=False)).fit(Lit(), three_classes())
    lit = Lit()
    trainer(BatchFormerCallback(verbose=False), average(), max_epochs=2).fit(lit, three_classes())
    assert len(lit.seen) == 6


def test_a_wrong_name_lists_the_children() -> None:
    with pytest.raises(AttachError, match=r"Lit has no submodule 'net'.*its children: model"):
        trainer(BatchFormerCallback("net")).fit(Lit(), three_classes())


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    source = sys.modules[BatchFormerCallback.__module__].__file__
    with pytest.raises(ImportError, match=r"needs lightning: pip install batchformer\[lightning\]"):
        runpy.run_path(str(source))  # as if imported for the first time


def test_a_checkpoint_loads_into_the_plain_module(saved: tuple[Lit, Path]) -> None:
    lit, file = saved
    with pytest.raises(RuntimeError, match=r"Unexpected key.*batchformer"):
        Lit.load_from_checkpoint(file)
    plain = Lit.load_from_checkpoint(file, strict=False)
    assert torch.equal(evaluated(plain), evaluated(lit))
    other = Lit()
    other.load_state_dict(export(torch.load(file, weights_only=True)["state_dict"]))
    assert torch.equal(evaluated(other), evaluated(lit))


class Decayed(Lit):
    """Far too much weight decay for the encoder."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            param_groups(self, lr=0.2, lr_factor=1.0, weight_decay=0.0, module_weight_decay=0.5)
        )


def test_influence_is_logged_and_its_loss_causes_a_warning() -> None:
    session = trainer(BatchFormerCallback(verbose=False), max_epochs=2)
    session.fit(Lit(), three_classes())
    assert session.callback_metrics["batchformer_influence"] > 1e-3
    session = trainer(BatchFormerCallback(verbose=False), max_epochs=20)
    with pytest.warns(UserWarning, match="weight decay has shrunk the encoder to nothing"):
        session.fit(Decayed(), three_classes())
    assert session.callback_metrics["batchformer_influence"] < 1e-3
    session = trainer(BatchFormerCallback(verbose=False, watch=False))
    session.fit(Lit(), three_classes())
    assert "batchformer_influence" not in session.callback_metrics
