"""BatchFormerTrainer against the real Trainer, on tiny random models."""

from __future__ import annotations

import copy
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from batchformer import attach, detach, duplicate  # noqa: E402
from batchformer.adapters.transformers import (  # noqa: E402
    BatchFormerMixin,
    BatchFormerTrainer,
    gives_two_streams,
)
from batchformer.nn.module import encoders_of  # noqa: E402
from helpers.tiny_transformers import NO_DROPOUT, tiny  # noqa: E402

CLASSES = 3


def bert(**config: Any) -> Any:
    return tiny("BertForSequenceClassification", **NO_DROPOUT, **config)


def vit(**config: Any) -> Any:
    settings = {"image_size": 8, "patch_size": 4, **NO_DROPOUT, **config}
    return tiny("ViTForImageClassification", **settings)


def attached(model: Any, **options: Any) -> Any:
    torch.manual_seed(1)
    return attach(model, dropout=0.0, verbose=False, **options)


class Examples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A list of examples as the Trainer's collator takes them."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def all(self) -> dict[str, Tensor]:
        return dict(self.columns)


def words(n: int, labels: Tensor | None = None) -> Examples:
    """The class of a text is the word it begins with."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(CLASSES, 30, (n, 6), generator=generator)
    ids[:, 0] = torch.arange(n) % CLASSES
    given = torch.arange(n) % CLASSES if labels is None else labels
    return Examples(input_ids=ids, attention_mask=torch.ones_like(ids), labels=given)


def images(n: int) -> Examples:
    """The class of an image is its colour."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % CLASSES
    x = 0.3 * torch.randn(n, 3, 8, 8, generator=generator)
    x[torch.arange(n), y] += 1.0
    return Examples(pixel_values=x, labels=y)


def arguments(folder: Path, **options: Any) -> Any:
    defaults = {
        "output_dir": str(folder),
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "per_device_train_batch_size": 4,
        "max_steps": 1,
        "seed": 0,
    }
    return transformers.TrainingArguments(**(defaults | options))


class Recorded(BatchFormerMixin, transformers.Trainer):  # type: ignore[misc,name-defined]
    """Remembers the batches it trained on, and the losses it gave to backward."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches: list[dict[str, Any]] = []
        self.losses: list[float] = []

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self.batches.append({key: inputs[key].clone() for key in inputs})
        return super().compute_loss(model, inputs, *args, **options)

    def training_step(self, *args: Any, **options: Any) -> Any:
        loss = super().training_step(*args, **options)
        self.losses.append(float(loss))
        return loss


def one_step(model: Any, folder: Path, data: Any) -> tuple[Any, Recorded, dict[str, Any]]:
    """The model as it was, the trainer after one step, and the batch of that step."""
    start = copy.deepcopy(model).train()
    trainer = Recorded(model=model, args=arguments(folder), train_dataset=data, eval_dataset=data)
    trainer.train()
    (batch,) = trainer.batches
    return start, trainer, batch


def logits_of(model: Any, batch: dict[str, Any]) -> Tensor:
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    return torch.as_tensor(model(**inputs).logits).as_subclass(Tensor)


def test_training_lowers_the_loss_and_the_saved_model_is_plain(tmp_path: Path) -> None:
    data, model = images(24), attach(vit(), verbose=False)
    start = copy.deepcopy(model).eval()
    trainer = BatchFormerTrainer(
        model=model,
        args=arguments(
            tmp_path, max_steps=40, learning_rate=1e-2, per_device_train_batch_size=8, save_steps=40
        ),
        train_dataset=data,
        eval_dataset=data,
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    metrics = trainer.evaluate()
    batch = data.all()
    with torch.no_grad():
        before = F.cross_entropy(logits_of(start, batch), batch["labels"])
        logits = logits_of(model.eval(), batch)
        after = F.cross_entropy(logits, batch["labels"])
    assert after < 0.5 * before
    assert metrics["eval_loss"] == pytest.approx(float(after), rel=1e-4)
    assert trainer.predict(data).predictions.shape == (24, CLASSES)

    plain, told = type(model).from_pretrained(tmp_path / "saved", output_loading_info=True)
    unexpected = set(told["unexpected_keys"])
    assert unexpected == {key for key in model.state_dict() if ".batchformer." in key}
    assert not told["missing_keys"]
    assert not told["mismatched_keys"]
    assert not encoders_of(plain)
    with torch.no_grad():
        assert torch.equal(logits_of(plain.eval(), batch), logits)


def test_a_checkpoint_in_the_middle_loads_plain_and_resumes(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    data = words(16)

    def trainer(folder: str, **options: Any) -> Any:
        args = arguments(tmp_path / folder, optim="adamw_torch", max_steps=4, **options)
        return BatchFormerTrainer(model=attached(bert()), args=args, train_dataset=data)

    whole = trainer("whole", save_strategy="steps", save_steps=2)
    whole.train()
    saved = tmp_path / "whole" / "checkpoint-2"
    kept = attached(bert())
    kept.load_state_dict(load_file(saved / "model.safetensors"))
    plain = transformers.BertForSequenceClassification.from_pretrained(saved)
    with torch.no_grad():
        batch = data.all()
        assert torch.equal(logits_of(plain.eval(), batch), logits_of(kept.eval(), batch))

    resumed = trainer("resumed")
    resumed.train(resume_from_checkpoint=str(saved))
    again, moved = resumed.model.state_dict(), 0
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again[name]), name
        moved += not torch.equal(value, kept.state_dict()[name])
    assert moved > len(again) / 2


@pytest.mark.parametrize("make", [vit, bert])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_accumulated_update_is_that_of_the_mean_over_both_streams(
    tmp_path: Path, make: Any, smoothing: float
) -> None:
    """Two micro-batches of 4 and 3 samples, one SGD step: against autograd by hand."""
    data = images(7) if make is vit else words(7)
    model, lr = attached(make()), 0.5
    start = copy.deepcopy(model).train()
    trainer = Recorded(
        model=model,
        args=arguments(
            tmp_path,
            optim="sgd",
            learning_rate=lr,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            gradient_accumulation_steps=2,
            label_smoothing_factor=smoothing,
        ),
        train_dataset=data,
    )
    trainer.train()
    assert [len(batch["labels"]) for batch in trainer.batches] == [4, 3]

    sums = []
    for batch in trainer.batches:
        logits = logits_of(start, batch)
        y = torch.cat((batch["labels"], batch["labels"]))
        assert len(logits) == len(y)
        sums.append(F.cross_entropy(logits, y, reduction="sum", label_smoothing=smoothing))
    # Which mean is the Trainer's affair, and depends on the model and the version: over all items
    # of the update where the loss is told their number; else over the rows of a micro-batch, which
    # the Trainer divides by the number of micro-batches unless it believes that the model did.
    if _told_the_number_of_items(trainer, smoothing):
        parts = [total / 14 for total in sums]
    elif trainer.model_accepts_loss_kwargs:
        parts = [sums[0] / 8, sums[1] / 6]
    else:
        parts = [sums[0] / 16, sums[1] / 12]
    assert trainer.losses == pytest.approx([part.item() for part in parts], rel=1e-5)

    torch.stack(parts).sum().backward()
    before, after = dict(start.named_parameters()), dict(trainer.model.named_parameters())
    moved = 0
    for name, parameter in before.items():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        rate = 0.1 * lr if ".batchformer." in name else lr
        torch.testing.assert_close(
            after[name], parameter - rate * gradient, rtol=1e-4, atol=1e-6, msg=name
        )
        moved += bool(gradient.any())
    assert moved > len(before) / 2


def _told_the_number_of_items(trainer: Any, smoothing: float) -> bool:
    import inspect

    if not trainer.model_accepts_loss_kwargs:
        return False
    if smoothing:
        return "num_items_in_batch" in inspect.signature(trainer.label_smoother).parameters
    source = inspect.getsource(type(trainer.model).forward)
    return "self.loss_function(" in source


def test_a_custom_loss_gets_twice_the_items(tmp_path: Path) -> None:
    """Works in every supported version: the one function that always gets the number."""
    seen: list[tuple[int, int, int]] = []

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        seen.append((len(outputs["logits"]), len(labels), int(num_items_in_batch)))
        total = F.cross_entropy(outputs["logits"], labels, reduction="sum")
        return torch.as_tensor(total / num_items_in_batch)

    trainer = Recorded(
        model=attached(bert()),
        args=arguments(tmp_path, gradient_accumulation_steps=2),
        train_dataset=words(7),
        compute_loss_func=loss,
    )
    start = copy.deepcopy(trainer.model).train()
    trainer.train()
    assert seen == [(8, 8, 14), (6, 6, 14)]
    rows = [
        F.cross_entropy(logits_of(start, b), duplicate(b["labels"]), reduction="none")
        for b in trainer.batches
    ]
    assert sum(trainer.losses) == pytest.approx(torch.cat(rows).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "problem", "labels", "criterion"),
    [
        (bert, "regression", torch.linspace(-1, 1, 4), F.mse_loss),
        (vit, "regression", torch.linspace(-1, 1, 4 * CLASSES).view(4, CLASSES), F.mse_loss),
        (
            bert,
            "multi_label_classification",
            torch.tensor([[1.0, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]]),
            F.binary_cross_entropy_with_logits,
        ),
        (vit, "single_label_classification", torch.tensor([0, 1, 2, 0]), F.cross_entropy),
    ],
)
def test_problem_types(
    tmp_path: Path, make: Any, problem: str, labels: Tensor, criterion: Any
) -> None:
    one = problem == "regression" and labels.ndim == 1
    model = attached(make(num_labels=1 if one else CLASSES, problem_type=problem))
    data = words(4) if make is bert else images(4)
    data.columns["labels"] = labels
    start, trainer, batch = one_step(model, tmp_path, data)
    logits = logits_of(start, batch)
    assert len(logits) == 8
    twice = torch.cat((batch["labels"], batch["labels"]))
    expected = criterion(logits.squeeze(-1) if one else logits, twice)
    assert trainer.losses == pytest.approx([expected.item()], rel=1e-5)
    with torch.no_grad():
        plain = logits_of(copy.deepcopy(model).eval(), data.all())
    expected = criterion(plain.squeeze(-1) if one else plain, labels)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_evaluation_is_untouched(tmp_path: Path) -> None:
    """The same metrics, to the bit, as the plain Trainer on the detached model."""
    data, model = words(10), attached(bert())
    args = arguments(tmp_path, label_smoothing_factor=0.2, per_device_eval_batch_size=4)
    mine = BatchFormerTrainer(model=model, args=args, eval_dataset=data).evaluate()
    theirs = transformers.Trainer(
        model=detach(copy.deepcopy(model)), args=args, eval_dataset=data
    ).evaluate()
    assert mine["eval_loss"] == theirs["eval_loss"]


def test_start_and_end_positions_are_labels_too(tmp_path: Path) -> None:
    model = attached(tiny("BertForQuestionAnswering", **NO_DROPOUT, num_labels=2))
    data = words(4)
    where = data.columns.pop("labels")
    data.columns |= {"start_positions": where, "end_positions": where + 1}
    rows = [{name: column[i] for name, column in data.columns.items()} for i in range(4)]
    start, trainer, batch = one_step(model, tmp_path, rows)
    names = ("start_positions", "end_positions")
    out = start(**{key: value for key, value in batch.items() if key not in names})
    first, last = (torch.cat((batch[name], batch[name])) for name in names)
    expected = F.cross_entropy(out.start_logits, first) + F.cross_entropy(out.end_logits, last)
    assert trainer.losses == pytest.approx([expected.item() / 2], rel=1e-5)


def test_mixed_only_leaves_labels_alone(tmp_path: Path) -> None:
    model = attached(bert(), streams="mixed_only")
    assert not gives_two_streams(model.train())
    start, trainer, batch = one_step(model, tmp_path, words(4))
    expected = F.cross_entropy(logits_of(start, batch), batch["labels"])
    assert trainer.losses == pytest.approx([expected.item()], rel=1e-5)


def test_streams_are_seen_through_wrappers() -> None:
    model = attached(bert())
    compiled: Any = torch.compile(model)
    for wrapped in (model, nn.DataParallel(model), compiled):
        assert gives_two_streams(wrapped.train())
        assert not gives_two_streams(wrapped.eval())
    assert not gives_two_streams(detach(model).train())


def test_data_parallel_is_refused(tmp_path: Path) -> None:
    model = attached(bert())
    trainer = BatchFormerTrainer(model=model, args=arguments(tmp_path), train_dataset=words(4))
    with pytest.raises(RuntimeError, match="torchrun"):
        trainer.compute_loss(nn.DataParallel(model.train()), words(4).all())


def test_own_rate_and_every_parameter_once(tmp_path: Path) -> None:
    class Slower(BatchFormerTrainer):  # type: ignore[misc]
        batchformer_lr_factor = 0.25

    model = attached(bert())
    args = arguments(tmp_path, learning_rate=0.4, weight_decay=0.1)
    for trainer_class, rate in ((BatchFormerTrainer, 0.04), (Slower, 0.1)):
        trainer = trainer_class(model=model, args=args, train_dataset=words(4))
        groups = trainer.create_optimizer().param_groups
        held = [id(p) for group in groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())
        names = {id(p): name for name, p in model.named_parameters()}
        for group in groups:
            for p in group["params"]:
                mine = ".batchformer." in names[id(p)]
                assert group["lr"] == pytest.approx(rate if mine else 0.4)
        assert {group["weight_decay"] for group in groups} == {0.0, 0.1}


def logged(model: Any, folder: Path, decay: float, watch: bool = True) -> list[dict[str, float]]:
    trainable = [p for name, p in model.named_parameters() if ".batchformer." not in name]
    mine = [p for name, p in model.named_parameters() if ".batchformer." in name]
    optimizer = torch.optim.SGD([{"params": trainable}, {"params": mine}], lr=0.2)
    optimizer.param_groups[1]["weight_decay"] = decay
    args = arguments(
        folder,
        max_steps=40,
        logging_strategy="steps",
        logging_steps=10,
        lr_scheduler_type="constant",
    )
    trainer = BatchFormerTrainer(
        model=model, args=args, train_dataset=words(16), optimizers=(optimizer, None)
    )
    trainer.batchformer_watch = watch
    trainer.train()
    history: list[dict[str, float]] = trainer.state.log_history
    return [entry for entry in history if "loss" in entry]


def test_influence_is_logged_and_its_loss_causes_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="BatchFormer")
        found = logged(attached(bert()), tmp_path, decay=0.0)
        assert len(found) == 4 and all(e["batchformer_influence"] > 1e-3 for e in found)
        found = logged(attached(bert()), tmp_path, decay=0.0, watch=False)
        assert not any("batchformer_influence" in entry for entry in found)
    with pytest.warns(UserWarning, match="weight decay has shrunk the encoder to nothing"):
        found = logged(attached(bert()), tmp_path, decay=0.7)
    assert found[-1]["batchformer_influence"] < 1e-3


def test_an_optimizer_of_the_users_is_left_alone(tmp_path: Path) -> None:
    model = attached(bert())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = BatchFormerTrainer(
        model=model, args=arguments(tmp_path), train_dataset=words(4), optimizers=(optimizer, None)
    )
    trainer.train()
    assert len(optimizer.param_groups) == 1


def test_a_forgotten_attach_causes_a_warning(tmp_path: Path) -> None:
    trainer = BatchFormerTrainer(model=bert(), args=arguments(tmp_path), train_dataset=words(4))
    with pytest.warns(UserWarning, match=r"not attached.*batchformer\.attach\(model\)"):
        trainer.train()
    quiet = BatchFormerTrainer(
        model=attached(bert()), args=arguments(tmp_path), train_dataset=words(4)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not attached.*")
        quiet.train()


def test_distributed_data_parallel_is_seen_through(tmp_path: Path) -> None:
    model = attached(bert())
    trainer = BatchFormerTrainer(model=model, args=arguments(tmp_path), train_dataset=words(4))
    batch = words(4).all()
    plain_batch = {key: value for key, value in batch.items() if key != "labels"}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(model.train())
        loss = trainer.compute_loss(wrapped, batch)
        expected = F.cross_entropy(model(**plain_batch).logits, duplicate(batch["labels"]))
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
        loss = trainer.compute_loss(wrapped.eval(), batch)
        expected = F.cross_entropy(model(**plain_batch).logits, batch["labels"])
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    finally:
        torch.distributed.destroy_process_group()


class OwnLoss(transformers.Trainer):  # type: ignore[misc,name-defined]
    """Takes the number of items in keywords, as the library's documentation writes it."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, inputs["labels"])
        return (loss, outputs) if return_outputs else loss


class Mixed(BatchFormerMixin, OwnLoss):
    pass


def test_a_trainer_of_the_user_may_take_the_number_of_items_in_keywords(tmp_path: Path) -> None:
    data = words(8)
    trainer = Mixed(
        model=attached(bert()), args=arguments(tmp_path), train_dataset=data, eval_dataset=data
    )
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    source = sys.modules[BatchFormerMixin.__module__].__file__
    fresh = runpy.run_path(str(source))  # as if imported for the first time
    with pytest.raises(ImportError, match=r"needs transformers: pip install batchformer\[hf\]"):
        fresh["__getattr__"]("BatchFormerTrainer")


def test_the_line_that_attach_prints_names_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    attach(bert())
    assert "batchformer.adapters.transformers.BatchFormerTrainer" in capsys.readouterr().out
    attach(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    assert "Trainer" not in capsys.readouterr().out
