"""PaCo against its loss composed by hand, its two encoders and its queue.

What several ranks compute is tested in test_ranks.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist

from batchformer import check
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.losses.paco import paco
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes import find_recipe
from batchformer.nn.randomness import drawing, seed_for

COUNTS = torch.tensor([50, 20, 10, 5, 1])
HYPER = {"queue": 16, "dim": 4, "alpha": 0.1, "temperature": 0.2, "momentum": 0.9}


def in_eval_norms(method: Any) -> Any:
    for module in method.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    return method


def projected(projection: Any, rows: Tensor) -> Tensor:
    hidden = F.relu(projection.norm(projection.hidden(rows)))
    return F.normalize(projection.output(hidden), dim=1)


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
def test_the_loss_by_hand_over_three_updates(make: Any, batch: Any, streams: str) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = in_eval_norms(make("paco", HYPER, dropout=0.0, **module))
    held: list[tuple[Tensor, int]] = []

    def rows(features: Tensor) -> Tensor:
        if streams == "none":
            return features
        mixed = method.encoder.mix(features)
        return mixed if streams == "mixed_only" else torch.cat((features, mixed))

    for shift in (0.0, 0.5, 1.0):
        part = {**batch, "x": batch["x"] + shift, "view2": batch["view2"] - shift}
        queries = rows(method.network.forward_features(part["x"]))
        keys = projected(
            method.key_projection, rows(method.key_network.forward_features(part["view2"]))
        )
        y = batch["y"].repeat(2 if streams == "shared" else 1)
        newest = held[-16:]
        queue = torch.stack([k for k, _ in newest]) if newest else torch.zeros(0, 4)
        labels = torch.tensor([label for _, label in newest], dtype=torch.int64)
        expected = paco(
            projected(method.projection, queries),
            keys,
            queue,
            method.network.fc(queries),
            y,
            labels,
            COUNTS,
            alpha=0.1,
            temperature=0.2,
        )
        torch.testing.assert_close(method.step(part)["loss"], expected)
        held += list(zip(keys.detach(), y.tolist(), strict=True))


def test_the_queue_takes_both_halves_of_the_keys(make: Any, batch: Any) -> None:
    method = make("paco", {**HYPER, "queue": 64}, dropout=0.0)
    method.step(batch)
    queue = method.queue
    assert int(queue.position) == 20 and int(queue.valid.sum()) == 20
    assert torch.equal(queue.labels[:20], batch["y"].repeat(2))
    torch.testing.assert_close(queue.keys[:20].norm(dim=1), torch.ones(20))
    alone = make("paco", {**HYPER, "queue": 64}, enabled=False)
    alone.step(batch)
    assert int(alone.queue.position) == 10


def test_only_the_queries_way_is_trained(make: Any, batch: Any, assert_trained_once: Any) -> None:
    for module in ({}, {"enabled": False}, {"streams": "mixed_only"}, {"trained": False}):
        assert_trained_once(make("paco", HYPER, **module), batch)


def test_the_slower_encoder_and_projection_follow_after_each_update(make: Any, batch: Any) -> None:
    method = make("paco", HYPER)
    own = {k: v.double().clone() for k, v in method.key_network.named_parameters()}
    directions = [v.double().clone() for v in method.key_projection.parameters()]
    optimizers = method.optimizers(OptimConfig(lr=0.5))
    optimizer_step = OptimizerStep(TrainConfig(), torch.device("cpu"))
    for _ in range(3):
        method.update(batch, optimizers, optimizer_step)
        method.after_update()
        for key, value in method.network.named_parameters():
            own[key] = 0.9 * own[key] + 0.1 * value.detach().double()
        leading = [value.detach().double() for value in method.projection.parameters()]
        directions = [0.9 * a + 0.1 * b for a, b in zip(directions, leading, strict=True)]
    for value, direction in zip(method.key_projection.parameters(), directions, strict=True):
        torch.testing.assert_close(value.double(), direction, rtol=1e-4, atol=1e-5)
    for key, value in method.key_network.named_parameters():
        torch.testing.assert_close(value.double(), own[key], rtol=1e-4, atol=1e-5)
        assert not torch.equal(value, dict(method.network.named_parameters())[key]), key
    for leader, slow in (
        (method.network, method.key_network),
        (method.projection, method.key_projection),
    ):
        assert not set(map(id, leader.parameters())) & set(map(id, slow.parameters()))


def test_keys_are_normalised_by_their_own_batch(make: Any, batch: Any) -> None:
    method = make("paco", HYPER).train()
    before = method.key_network.bn1.running_mean.clone(), method.network.bn1.running_mean.clone()
    method.keys(batch["view2"])
    assert not torch.equal(method.key_network.bn1.running_mean, before[0])
    assert torch.equal(method.network.bn1.running_mean, before[1])


def test_prediction_is_the_centres_answer_to_the_plain_query(make: Any, batch: Any) -> None:
    method, without = make("paco").eval(), make("paco", enabled=False).eval()
    x = batch["x"]
    features = method.network.forward_features(x)
    assert torch.equal(method.predict(x), method.network.fc(features))
    assert torch.equal(method.predict(x), without.predict(x))


def test_both_arms_begin_alike(make: Any) -> None:
    own, other = make("paco").state_dict(), make("paco", enabled=False).state_dict()
    assert all(torch.equal(own[key], value) for key, value in other.items())
    assert {key.split(".")[0] for key in set(own) - set(other)} == {"encoder"}


def test_scales_are_of_the_mean_over_both_halves(make: Any, batch: Any) -> None:
    def loss(**module: Any) -> Tensor:
        built: Tensor = in_eval_norms(make("paco", HYPER, dropout=0.0, **module)).step(batch)[
            "loss"
        ]
        return built

    torch.testing.assert_close(loss(loss_scale="sum"), 2 * loss())


def test_resumed_equals_unbroken(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: make("paco", HYPER))


def test_a_step_writes_its_state_in_place(make: Any, batch: Any) -> None:
    method = make("paco", HYPER)
    places = {k: v.data_ptr() for k, v in method.state_dict().items()}
    optimizer_step = OptimizerStep(TrainConfig(), torch.device("cpu"))
    method.update(batch, method.optimizers(OptimConfig()), optimizer_step)
    method.after_update()
    assert {k: v.data_ptr() for k, v in method.state_dict().items()} == places
    assert method.why_eager() is None and method.phase() is None


def test_it_is_acting(make: Any, batch: Any) -> None:
    method = make("paco")
    assert check(method, batch["x"], method.optimizers(OptimConfig())["main"]).passed


#: Rows of each rank, of the ten that one process has, by the number of ranks.
ROWS = {2: (4, 6), 3: (3, 5, 2)}
MODULES: dict[str, dict[str, Any]] = {"baseline": {"enabled": False}, "both streams": {}}
STEPS = 2


def in_double(module: dict[str, Any], **hyper: Any) -> Any:
    """PaCo in training without dropout, whose two encoders differ."""
    with drawing(0, "weights"):
        network = build_model("digits_net", 5)
    method: Any = build_method(
        "paco",
        network=network,
        class_counts=COUNTS,
        module=ModuleConfig(dropout=0.0, **module),
        seed=0,
        hyper=MethodConfig(**{**HYPER, "queue": 64, **hyper}),
    )
    with torch.no_grad():
        for weight in [*method.key_network.parameters(), *method.key_projection.parameters()]:
            weight.mul_(0.9)
    return method.double().train()


def ten_samples() -> dict[str, Tensor]:
    """Two views of ten images, brighter from one to the next, so that parts differ."""
    draw = torch.Generator().manual_seed(1)
    views = torch.randn(2, 10, 1, 8, 8, generator=draw, dtype=torch.float64)
    views = views + 0.3 * torch.arange(10).view(10, 1, 1, 1)
    return {"x": views[0], "view2": views[1], "y": torch.arange(10) % 5}


def steps_of(method: Any, samples: dict[str, Tensor]) -> dict[str, Any]:
    """What steps leave; weights stay, and the order of the keys is another one in each."""
    losses = []
    for _ in range(STEPS):
        losses.append(method.step(samples)["loss"].detach())
        method.updates.add_(1)
    means = method.key_network.bn1.running_mean, method.key_projection.norm.running_mean
    queue = method.queue
    return {
        "losses": losses,
        "keys": queue.keys[queue.valid],
        "labels": queue.labels[queue.valid],
        "means": means,
    }


def work(rank: int, ranks: int, folder: str) -> None:
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    rows = slice(sum(ROWS[ranks][:rank]), sum(ROWS[ranks][: rank + 1]))
    own = {name: value[rows] for name, value in ten_samples().items()}
    found = {name: steps_of(in_double(module), own) for name, module in MODULES.items()}
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


def keys_of_groups(method: Any, images: Tensor, order: Tensor, sizes: tuple[int, ...]) -> Any:
    """One process's keys (streams, 10, D), where each group of a shuffled batch is a batch.

    Also the means that the first and the last normalisation of each group kept.
    """
    found, means = [], []
    for encoders, group in zip(method.encoders, order.split(sizes), strict=True):
        method.key_network, method.key_projection = encoders
        made = method.keys(images[group])
        found.append(made.view(-1, len(group), made.shape[1]))
        means.append((encoders[0].bn1.running_mean, encoders[1].norm.running_mean))
    return torch.cat(found, 1)[:, order.argsort()], means


def assert_ranks_are_groups_of_one_batch(
    name: str, sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    method, samples = in_double(MODULES[name]), ten_samples()
    fast, slow = (method.network, method.projection), (method.key_network, method.key_projection)
    method.encoders = [copy.deepcopy(slow) for _ in sizes]
    own_fast = [copy.deepcopy(fast) for _ in sizes]
    held, held_labels = torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(seed_for(0, "order", step, 2))
        order = torch.randperm(10, generator=draw)
        keys, means = keys_of_groups(method, samples["view2"], order, sizes)
        parts = torch.arange(10).split(sizes)
        for rank, (part, found) in enumerate(zip(parts, by_rank, strict=True)):
            method.network, method.projection = own_fast[rank]
            rows = method.streams(method.features(samples["x"][part]))
            labels = samples["y"][part].repeat(len(keys))
            expected = paco(
                method.projection(rows),
                keys[:, part].flatten(0, 1),
                held,
                method.network.fc(rows),
                labels,
                held_labels,
                COUNTS,
                alpha=0.1,
                temperature=0.2,
            )
            torch.testing.assert_close(found["losses"][step], expected.detach())
        held = torch.cat([held, keys.flatten(0, 1)])
        held_labels = torch.cat([held_labels, samples["y"].repeat(len(keys))])
    for rank, found in enumerate(by_rank):
        torch.testing.assert_close(found["keys"], held)
        assert torch.equal(found["labels"], held_labels)
        torch.testing.assert_close(found["means"], means[rank])


def assert_ranks(folder: Path) -> None:
    """Losses, queue and statistics are those of one process with the same groups."""
    for ranks, sizes in ROWS.items():
        got = [
            torch.load(folder / f"{rank}of{ranks}.pt", weights_only=True) for rank in range(ranks)
        ]
        for name in MODULES:
            assert_ranks_are_groups_of_one_batch(name, sizes, [found[name] for found in got])


@pytest.mark.parametrize("name", MODULES)
def test_parts_on_one_device_are_what_a_loop_over_them_computes(name: str) -> None:
    method, plain = in_double(MODULES[name], norm_parts=2), in_double(MODULES[name])
    samples = ten_samples()
    torch.manual_seed(3)
    found = method.step(samples)["loss"]
    torch.manual_seed(3)
    order = torch.rand(10).argsort()
    halves = torch.arange(10).split(5)
    features = torch.cat([plain.features(samples["x"][half]) for half in halves])
    rows = plain.streams(features).view(-1, 10, features.shape[1])
    made = [plain.projection(rows[:, half].flatten(0, 1)).view(-1, 5, 4) for half in halves]
    queries = torch.cat(made, 1)
    network: Any = plain.key_network
    features = torch.empty_like(features)
    for part in (order[0::2], order[1::2]):
        features[part] = network.forward_features(samples["view2"][part]).detach()
    slow_rows = plain.streams(features).view(-1, 10, features.shape[1])
    keys = torch.empty_like(queries)
    for part in (order[0::2], order[1::2]):
        keys[:, part] = plain.key_projection(slow_rows[:, part].flatten(0, 1)).view(-1, 5, 4)
    keys = keys.detach().flatten(0, 1)
    nothing = torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64)
    expected = paco(
        queries.flatten(0, 1),
        keys,
        nothing[0],
        plain.network.fc(rows.flatten(0, 1)),
        samples["y"].repeat(len(rows)),
        nothing[1],
        COUNTS,
        alpha=0.1,
        temperature=0.2,
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(method.queue.keys[: len(keys)], keys)
    found.backward()
    expected.backward()  # type: ignore[no-untyped-call]
    wanted = dict(plain.named_parameters())
    for key, weight in method.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, wanted[key].grad, msg=key)


def test_arms_shuffle_alike() -> None:
    samples, taken = ten_samples(), []
    for module in MODULES.values():
        method = in_double(module, norm_parts=2)
        seen = method.keys

        def watch(x: Tensor, seen: Any = seen) -> Any:
            taken.append(x)
            return seen(x)

        method.keys = watch
        torch.manual_seed(5)
        method.step(samples)
    assert torch.equal(*taken) and not torch.equal(taken[0], samples["view2"])
    assert sorted(taken[0].sum((1, 2, 3)).tolist()) == pytest.approx(
        sorted(samples["view2"].sum((1, 2, 3)).tolist())
    )


def test_batches_without_parts_of_one_size_are_refused(make: Any, batch: Any) -> None:
    with pytest.raises(ValueError, match="a batch of 10 rows cannot be divided into 4 equal parts"):
        make("paco", {**HYPER, "norm_parts": 4}).train().step(batch)
    recipe = find_recipe("imagenet_lt_paco")
    with pytest.raises(ValueError, match="norm-parts 4 needs batches with as many rows"):
        replace(recipe, train=replace(recipe.train, batch_size=126))
