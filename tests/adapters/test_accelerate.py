"""prepare() and save_plain() with a real Accelerator, on tiny data."""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

from batchformer import check, match  # noqa: E402
from batchformer.adapters.accelerate import log_influence, prepare, save_plain  # noqa: E402
from helpers.networks import evaluated, small_network, three_classes  # noqa: E402


@pytest.fixture(autouse=True)
def _no_shared_state() -> Iterator[None]:
    """Accelerate keeps its settings for the process; each test has its own."""
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def train(accelerator: Any, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
    """One step, as a user writes it; the loss."""
    with accelerator.accumulate(model):
        logits = model(x)
        assert len(logits) == 2 * len(x)
        loss = F.cross_entropy(logits, match(logits, y))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


def assert_saved(path: Path, model: nn.Module) -> None:
    fresh = small_network()
    fresh.load_state_dict(torch.load(path, weights_only=True), strict=True)
    assert torch.equal(evaluated(fresh).float(), evaluated(model))


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_training_lowers_the_loss_and_saves_the_plain_model(tmp_path: Path, precision: str) -> None:
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    plain = small_network()
    optimizer = sgd(plain, momentum=0.9)
    torch.manual_seed(1)
    model, optimizer, loader = prepare(
        accelerator, plain, optimizer, three_classes(), verbose=False
    )
    assert check(model, next(iter(loader)), optimizer)
    losses = [train(accelerator, model, optimizer, *batch) for _ in range(12) for batch in loader]
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])

    save_plain(accelerator, model, tmp_path / "plain.pt")
    assert model(torch.randn(4, 6)).shape == (8, 3)  # still attached, still training
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        assert_saved(tmp_path / "plain.pt", model)


def test_accumulation_is_the_mean_over_both_streams_of_all_micro_batches() -> None:
    """Two micro-batches of 12, one SGD step: against autograd by hand."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain, lr = small_network(), 0.5
    model, optimizer, loader = prepare(
        accelerator, plain, sgd(plain, lr), three_classes(12), dropout=0.0, verbose=False
    )
    start, rows = copy.deepcopy(plain), []
    for x, y in loader:
        train(accelerator, model, optimizer, x, y)
        rows.append(F.cross_entropy(start(x), torch.cat((y, y)), reduction="none"))
    assert [len(part) for part in rows] == [24, 24]
    torch.cat(rows).mean().backward()
    after = dict(plain.named_parameters())
    for name, parameter in start.named_parameters():
        assert parameter.grad is not None
        rate = 0.1 * lr if ".batchformer." in name else lr
        expected = parameter - rate * parameter.grad
        torch.testing.assert_close(after[name], expected, rtol=1e-4, atol=1e-6, msg=name)
        assert not torch.equal(expected, parameter)


def test_a_distributed_model_is_unwrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}
    for name, value in {**places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    accelerator = accelerate.Accelerator(cpu=True)
    try:
        given = small_network()
        model, optimizer = prepare(accelerator, given, sgd(given), verbose=False)
        assert isinstance(model, nn.parallel.DistributedDataParallel)
        train(accelerator, model, optimizer, torch.randn(4, 6), torch.arange(4) % 3)
        save_plain(accelerator, model, tmp_path / "plain.pt")
        assert_saved(tmp_path / "plain.pt", model)
    finally:
        torch.distributed.destroy_process_group()


def test_everything_comes_back_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    given = small_network()
    optimizer = sgd(given)
    loaders = three_classes(), three_classes(4)
    model, prepared, first, second = prepare(
        accelerator, given, optimizer, *loaders, at="0", heads=2, lr_factor=0.5
    )
    assert model is given
    assert prepared.optimizer is optimizer
    assert [group["lr"] for group in prepared.param_groups] == [0.1, 0.05]
    assert [len(next(iter(loader))[0]) for loader in (first, second)] == [8, 4]
    assert "BatchFormer attached before '0'" in capsys.readouterr().out


def test_a_scheduler_built_too_early_is_refused() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = small_network()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    with pytest.raises(ValueError, match=r"CosineAnnealingLR was built before.*Call attach"):
        prepare(accelerator, model, optimizer, three_classes(), scheduler)
    assert list(model.state_dict()) == list(small_network().state_dict())


class Other:
    """A process that is not the first, as far as save_plain() can see."""

    is_main_process = False
    waited = False

    def wait_for_everyone(self) -> None:
        self.waited = True


def test_other_processes_write_nothing_and_wait(tmp_path: Path) -> None:
    other: Any = Other()
    save_plain(other, small_network(), tmp_path / "plain.pt")
    assert other.waited
    assert not list(tmp_path.iterdir())


def test_influence_is_logged_and_its_loss_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator, plain = accelerate.Accelerator(cpu=True), small_network()
    logged: list[Any] = []
    monkeypatch.setattr(accelerator, "log", lambda values, step: logged.append((values, step)))
    model, optimizer, loader = prepare(
        accelerator, plain, sgd(plain, 0.2), three_classes(), lr_factor=1.0, verbose=False
    )
    batch = next(iter(loader))
    first = log_influence(accelerator, model, batch, step=7)
    assert first is not None and first > 1e-3
    assert logged == [({"batchformer_influence": first}, 7)]
    assert log_influence(accelerator, model, batch[0][:1]) is None  # nobody to act on
    optimizer.param_groups[-1]["weight_decay"] = 0.5
    for x, y in [*loader] * 20:
        train(accelerator, model, optimizer, x, y)
    with pytest.warns(UserWarning, match="weight decay has shrunk the encoder to nothing"):
        last = log_influence(accelerator, model, batch)
    assert last is not None and last < 1e-3
