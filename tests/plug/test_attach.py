"""What attach does to a model, what it records, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from batchformer import BatchFormer, attach, check, detach, export, param_groups
from batchformer.nn.module import encoders_of
from batchformer.plug.classifier import AttachError
from batchformer.plug.insertion import RECORD, Attachment, unwrap


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.linear(x)).relu()


class Net(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.blocks(self.stem(x))))


X = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


def test_one_line_is_printed_and_names_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    attach(Net())
    (line,) = capsys.readouterr().out.splitlines()
    for words in ("'fc'", "8 channels", "+464 parameters", "2N rows", "match(logits, y)"):
        assert words in line
    attach(Net(), streams="mixed_only")
    assert "N mixed rows" in capsys.readouterr().out


def test_options_reach_the_module() -> None:
    model = attach(Net(), heads=2, layers=3, dropout=0.1, attend="self", verbose=False)
    encoder = model.fc.batchformer
    assert isinstance(encoder, BatchFormer)
    assert (encoder.heads, len(encoder.layers)) == (2, 3)
    assert (encoder.dropout, encoder.attend) == (0.1, "self")


def test_several_places_double_once() -> None:
    model = attach(Net(), at=["fc", "blocks.1", "blocks.2"], verbose=False)
    places = [model.blocks[1], model.blocks[2], model.fc]
    assert [place._place.role for place in places] == ["double", *["mix_second_half"] * 2]
    assert len({id(place.batchformer) for place in places}) == 3
    assert model(X).shape == (14, 5)
    with pytest.raises(ValueError, match=r"batchformer\.match"):
        F.cross_entropy(model(X), torch.zeros(7, dtype=torch.long))


def test_the_seed_decides_the_encoder_and_nothing_else_sees_it() -> None:
    def encoder_of(seed: int, **options: object) -> list[Tensor]:
        torch.manual_seed(seed)
        model = attach(Net(), verbose=False, **options)  # type: ignore[arg-type]
        return [m.layers[0].linear1.weight for m in encoders_of(model)]

    def order_after(prepare: Callable[[nn.Module], object]) -> Tensor:
        torch.manual_seed(1)
        prepare(Net())
        return torch.randperm(100)

    baseline = order_after(lambda model: None)
    assert torch.equal(order_after(lambda model: attach(model, verbose=False)), baseline)
    assert torch.equal(encoder_of(0)[0], encoder_of(0)[0])
    assert not torch.equal(encoder_of(0)[0], encoder_of(1)[0])
    first, second = encoder_of(0, at=["blocks.1", "fc"])
    assert not torch.equal(first, second), "each place has weights of its own"
    torch.manual_seed(0)
    ensemble = [attach(Net(), verbose=False).fc.batchformer for _ in range(2)]
    first, second = (member.layers[0].linear1.weight for member in ensemble)
    assert not torch.equal(first, second)


def test_share_uses_one_module_under_one_key() -> None:
    model = attach(Net(), at=["blocks.0", "blocks.2"], share=True, verbose=False)
    assert len(encoders_of(model)) == 1
    assert not any(key.startswith("blocks.2.batchformer") for key in model.state_dict())
    twin = copy.deepcopy(model)
    assert twin.blocks[2]._place.encoder is twin.blocks[0].batchformer
    assert twin.blocks[2]._place.encoder is not model.blocks[0].batchformer


def test_batch_norm_after_the_insertion() -> None:
    joint = attach(Net(), at="blocks.1", verbose=False)
    assert type(joint.blocks[2].norm) is nn.BatchNorm1d
    apart = attach(Net(), at="blocks.1", batch_norm="per_stream", verbose=False)
    kinds = [type(block.norm) is nn.BatchNorm1d for block in apart.blocks]
    assert kinds == [True, False, False], "only norms after the insertion change"
    assert apart(X).shape == (14, 5)
    detach(apart)
    assert all(type(block.norm) is nn.BatchNorm1d for block in apart.blocks)


@pytest.mark.parametrize("labels", [False, True])
def test_lazy_modules_take_their_shapes_from_the_example(labels: bool) -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(5))

    model, twin = build(), build()
    with pytest.raises(AttachError, match=r"'0\.weight' has no shape.*Pass example="):
        attach(model)
    assert isinstance(model[0], nn.LazyLinear)
    attach(model, example=(X, torch.zeros(7)) if labels else X, verbose=False)
    assert model(X).shape == (14, 5) and type(detach(model)[0]) is nn.Linear
    torch.manual_seed(0)
    twin.eval()(X)
    model[1].reset_running_stats()
    assert torch.equal(model.eval()(X), twin(X)), "the weights of a first batch of its own"


def test_a_model_without_values_is_attached_and_gets_them_later() -> None:
    with torch.device("meta"):
        model = attach(Net(), example=torch.randn(3, 6), verbose=False)
    assert all(p.is_meta for p in model.parameters())
    assert model.to_empty(device="cpu")(X).shape == (14, 5)


def test_exchange_is_passed_on_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    model = attach(Net(), exchange=True)
    assert model.fc.batchformer.exchange
    line = capsys.readouterr().out
    assert "over the samples of all ranks" in line
    assert "stream_loss(criterion, logits, y, exchange=True)" in line
    assert model(X).shape == (14, 5)
    assert not attach(Net(), verbose=False).fc.batchformer.exchange


def test_an_encoder_larger_than_the_network_causes_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(Net(), verbose=False)  # it outweighs this one too, and nobody minds
    monkeypatch.setattr("batchformer.plug.attach.HEAVY", 100)
    with pytest.warns(UserWarning, match=r"'fc' reads 8 channels.*attach\(model, dim=512\)"):
        attach(Net(), verbose=False)


def test_a_bottleneck_is_attached_checked_and_removed() -> None:
    torch.manual_seed(0)
    model = attach(Net(), dim=4, verbose=False)
    optimizer = torch.optim.SGD(param_groups(model, lr=0.1))
    assert model.fc.batchformer.layers[0].linear1.in_features == 4
    result = check(model, X, optimizer)
    assert result, str(result)
    assert list(export(model).state_dict()) == list(Net().state_dict())


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))


def test_the_record_says_what_was_done_and_travels_with_the_model() -> None:
    options = {"streams": "shared", "batch_norm": "per_stream", "verbose": False}
    model = attach(sequence(), ["3", "1"], **options)  # type: ignore[arg-type]
    expected = Attachment(places=("1", "3"), changed=("1", "2", "3"), streams="shared")
    assert model.__dict__[RECORD] == expected
    assert pickle.loads(pickle.dumps(model)).__dict__[RECORD] == expected
    assert RECORD not in detach(model).__dict__


def test_mixed_rows_and_another_axis_of_samples_are_recorded() -> None:
    example = torch.randn(4, 3, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    attach(model, streams="mixed_only", example=example, input_axis=1, verbose=False)
    assert model.__dict__[RECORD] == Attachment(("1",), ("1",), "mixed_only", input_axis=1)


def compiled_in_place() -> nn.Module:
    model = Net()
    model.compile(backend="eager")
    return model


def of_two_widths() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 16), nn.Linear(16, 3))


PER_STREAM = {"at": "blocks.1.norm", "batch_norm": "per_stream"}
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "attached already": (lambda: attach(Net(), verbose=False), {}, r"detach\(model\) first"),
    "a part of it is attached": (
        lambda: nn.Sequential(attach(sequence(), verbose=False)),
        {},
        r"detach\(model\) first",
    ),
    "DataParallel": (lambda: nn.DataParallel(Net()), {}, "train with DistributedDataParallel"),
    "compiled": (lambda: torch.compile(Net(), backend="eager"), {}, "wrap it afterwards"),
    "compiled in place": (compiled_in_place, {}, "Attach first, then compile it"),
    "TorchScript": (lambda: torch.jit.script(nn.Linear(4, 2)), {}, "script what export"),
    "an axis of channels that is not there": (Net, {"channel_axis": 2}, "no channels on axis 2"),
    "heads that do not fit": (
        of_two_widths,
        {"at": ["1", "2"], "heads": 16},
        r"before '1' \(Linear, input \(3, 8\)\): .*use heads= one of 1, 2, 4, 8",
    ),
    "a norm as the place": (Net, PER_STREAM, "name the layer before it"),
    "one module for two widths": (
        of_two_widths,
        {"at": ["1", "2"], "share": True},
        r"inputs of \[8, 16\] channels",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_stays_as_it_was(name: str) -> None:
    build, options, words = REFUSED[name]
    model = build()
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=words):
        attach(model, verbose=False, **options)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("given", ["no example", "an example", "an example of that mode"])
def test_it_works_inside_inference_mode(given: str) -> None:
    model, lazy = Net(), given != "no example"
    if lazy:  # parameters get their shapes inside, too
        model.stem = nn.LazyLinear(8)
    with torch.inference_mode():
        made = X.clone() if given == "an example of that mode" else X
        attach(model, example={"x": made} if lazy else None, verbose=False)
        assert torch.is_inference_mode_enabled()
    logits = model(X)
    assert logits.shape == (14, 5)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert check(model, X)


def test_a_model_built_inside_inference_mode_is_refused_with_what_to_do() -> None:
    with torch.inference_mode():
        model = Net()
        with pytest.raises(AttachError, match=r"'stem.weight' was made inside torch.inference"):
            attach(model)
    with pytest.raises(AttachError, match=r"attach to copy.deepcopy\(model\) made outside"):
        attach(model)
    assert attach(copy.deepcopy(model), verbose=False)(X).requires_grad
    model = Net()
    with torch.inference_mode():
        model.blocks[1].norm.running_mean = torch.zeros(8)
    with pytest.raises(AttachError, match=r"'blocks.1.norm.running_mean' was made inside"):
        attach(model)


def test_places_of_several_widths_have_a_module_each() -> None:
    assert attach(of_two_widths(), at=["1", "2"], verbose=False)(X).shape == (14, 3)


def test_wrappers_are_seen_through() -> None:
    model = attach(Net(), verbose=False)
    assert unwrap(model) is model
    ranks = nn.DataParallel(model)
    for wrapped in (ranks, torch.compile(model, backend="eager"), torch.compile(ranks)):
        assert unwrap(wrapped) is model and isinstance(export(wrapped), Net)
    assert isinstance(unwrap(AveragedModel(model)), Net)


def test_a_scheduler_built_before_is_refused_and_the_model_is_as_it_was() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with pytest.raises(AttachError, match="then build the scheduler"):
        attach(model, optimizer=optimizer)
    assert type(model.fc) is nn.Linear and len(optimizer.param_groups) == 1


def test_an_optimizer_that_takes_no_group_leaves_the_model_as_it_was() -> None:
    class OneGroup(torch.optim.SGD):
        def add_param_group(self, param_group: dict[str, Any]) -> None:
            if getattr(self, "param_groups", []):
                raise ValueError("one group only")
            super().add_param_group(param_group)

    model = Net()
    before = dict(model.state_dict())
    with pytest.raises(ValueError, match="one group only"):
        attach(model, optimizer=OneGroup(model.parameters(), lr=0.1))
    assert type(model.fc) is nn.Linear and model.state_dict().keys() == before.keys()
    attach(model, verbose=False)


def test_ddp_and_fsdp_are_refused_with_what_to_do(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(Net())
        with pytest.raises(AttachError, match="wrap it afterwards"):
            attach(wrapped)
        with pytest.warns(UserWarning, match="DIFFERENT ENCODERS"):
            attach(wrapped.module, verbose=False)
        mesh = init_device_mesh("cpu", (1,))
        sharded = fully_shard(Net(), mesh=mesh)
        with pytest.raises(AttachError, match="Attach first, then shard"):
            attach(sharded)
        with pytest.raises(AttachError, match="Gather its full state dict"):
            export(sharded)
        parallel = parallelize_module(
            attach(Net(), verbose=False), mesh, {"stem": ColwiseParallel()}
        )
        assert parallel(X).shape == (14, 5)
        for model in (sharded, parallel):
            with pytest.raises(ValueError, match="before it is sharded"):
                check(model, X)
    finally:
        distributed.destroy_process_group()
