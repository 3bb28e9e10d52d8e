"""LoRA and BatchFormer together, in both orders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

peft = pytest.importorskip("peft")

from batchformer import attach, check, detach, export, match  # noqa: E402
from batchformer.adapters.transformers import gives_two_streams  # noqa: E402
from batchformer.nn.module import encoders_of  # noqa: E402
from batchformer.plug.classifier import AttachError  # noqa: E402
from helpers.tiny_transformers import tiny  # noqa: E402

N, CLASSES = 6, 3


def bert() -> Any:
    return tiny("BertForSequenceClassification", max_position_embeddings=512)


def lora(model: Any, targets: tuple[str, ...] = ("query", "value"), **options: Any) -> Any:
    config = peft.LoraConfig(r=2, target_modules=list(targets), **options)
    return peft.get_peft_model(model, config)


def before() -> Any:
    return lora(attach(bert(), verbose=False), modules_to_save=["classifier"])


def after() -> Any:
    return attach(lora(bert(), modules_to_save=["classifier"]), verbose=False)


def after_for_task() -> Any:
    return attach(lora(bert(), task_type="SEQ_CLS"), verbose=False)


BATCH = {"input_ids": torch.randint(0, 50, (N, 7), generator=torch.Generator().manual_seed(0))}
Y = torch.arange(N) % CLASSES


def logits_of(model: Any) -> Tensor:
    return torch.as_tensor(model(**BATCH).logits).as_subclass(Tensor)


def train(model: Any, steps: int = 8) -> list[float]:
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=3e-2)
    losses = []
    for _ in range(steps):
        logits = logits_of(model.train())
        assert len(logits) == 2 * N
        loss = F.cross_entropy(logits, match(logits, Y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [before, after, after_for_task])
def test_lora_classifier_and_batchformer_train_and_nothing_else(make: Any) -> None:
    model = make()
    assert gives_two_streams(model.train())
    start = copy.deepcopy(dict(model.named_parameters()))
    losses = train(model, steps=24)
    assert sum(losses[-5:]) < sum(losses[:5]), "a single step is mostly the noise of dropout"
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, start[n])}
    assert all("lora_" in name or "modules_to_save" in name for name in moved)
    for part in ("lora_A", "lora_B", "modules_to_save.default.weight", ".batchformer."):
        assert any(part in name for name in moved), part


@pytest.mark.parametrize("make", [before, after, after_for_task])
def test_a_saved_adapter_loads_without_batchformer(make: Any, tmp_path: Path) -> None:
    model = make()
    train(model)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        plain = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
        assert not encoders_of(plain)
        assert torch.equal(logits_of(plain), logits_of(model.eval()))


@pytest.mark.parametrize("make", [before, after, after_for_task])
def test_export_and_merge(make: Any) -> None:
    model = make()
    train(model)
    with torch.no_grad():
        expected = logits_of(model.eval())
        exported = export(model, BATCH)
        assert torch.equal(logits_of(exported), expected)
        assert not encoders_of(exported)
        merged = model.merge_and_unload()
        assert gives_two_streams(merged.train())
        detach(merged)
        assert list(merged.state_dict()) == list(bert().state_dict())
        torch.testing.assert_close(logits_of(merged.eval()), expected)


def test_attached_before_it_is_checked() -> None:
    """The frozen original of the classifier, kept aside with its BatchFormer, does not count."""
    model = before()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    seen = check(model, BATCH, optimizer)
    assert seen, str(seen)
    assert "attached before classifier" in str(seen)


@pytest.mark.parametrize("make", [after, after_for_task])
def test_attached_after_it_is_checked_and_removed(make: Any) -> None:
    model = make()
    seen = check(model, BATCH, torch.optim.SGD(model.parameters(), lr=0.1))
    assert seen, str(seen)
    plain = lora(bert(), modules_to_save=["classifier"])
    assert list(detach(model).state_dict()) == list(plain.state_dict())


def test_a_head_that_is_not_saved_needs_attach_after() -> None:
    """LoRA freezes all it finds: attached before, BatchFormer as well, and check says so."""
    late = attach(lora(bert()), verbose=False)
    assert check(late, BATCH)
    assert train(late)
    early = lora(attach(bert(), verbose=False))
    assert "12 of 12 parameters are frozen" in str(check(early, BATCH))


def test_lora_on_the_classifier_itself_needs_its_name() -> None:
    model = lora(bert(), ("query", "classifier"))
    with pytest.raises(AttachError, match=r"no single classifier.*'base_model\.model\.classifier"):
        attach(model)
    attach(model, at="base_model.model.classifier", verbose=False)
    assert check(model, BATCH)
    assert train(model)
