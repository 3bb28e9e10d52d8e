"""attach, check, detach and export on Hugging Face classifiers, from tiny random configurations."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from batchformer import attach, check, export, split  # noqa: E402
from helpers.promises import assert_promises_are_kept  # noqa: E402

N, LENGTH, CLASSES = 5, 7, 3
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": CLASSES,
}
PATCHES = {"image_size": 16, "patch_size": 8}
TEXT = {"vocab_size": 50, "max_position_embeddings": 40}


def build(kind: str, config: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    for norm in (m for m in made.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))):
        norm.momentum = 1.0
    with torch.no_grad():  # settles the statistics: untrained ones let the features vanish
        made.train()(**batch_for(made))
    return made.eval()


def batch_for(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        side = getattr(model.config, "image_size", 32)
        return {"pixel_values": torch.randn(N, 3, side, side, generator=generator)}
    ids = torch.randint(2, 50, (N, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0  # texts of unequal length
    return {"input_ids": ids, "attention_mask": mask}


FAMILIES: dict[str, Callable[[], Any]] = {
    "ViT": lambda: build("ViTForImageClassification", "ViTConfig", **TINY, **PATCHES),
    "ConvNext": lambda: build(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        image_size=32,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        num_labels=CLASSES,
    ),
    "ResNet": lambda: build(
        "ResNetForImageClassification",
        "ResNetConfig",
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        num_labels=CLASSES,
    ),
    "Swin": lambda: build(
        "SwinForImageClassification",
        "SwinConfig",
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        num_labels=CLASSES,
    ),
    "DeiT with teacher": lambda: build(
        "DeiTForImageClassificationWithTeacher", "DeiTConfig", **TINY, **PATCHES
    ),
    "LeViT with teacher": lambda: build(
        "LevitForImageClassificationWithTeacher",
        "LevitConfig",
        image_size=64,
        hidden_sizes=[16, 16, 16],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[4, 4, 4],
        num_labels=CLASSES,
    ),
    "BERT": lambda: build("BertForSequenceClassification", "BertConfig", **TINY, **TEXT),
    "RoBERTa": lambda: build("RobertaForSequenceClassification", "RobertaConfig", **TINY, **TEXT),
    "DistilBERT": lambda: build(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=16,
        num_labels=CLASSES,
        **TEXT,
    ),
    "BERT for tokens": lambda: build("BertForTokenClassification", "BertConfig", **TINY, **TEXT),
}


def logits_of(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return torch.as_tensor(model(**batch).logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_promise_is_kept(name: str) -> None:
    model = FAMILIES[name]()
    assert_promises_are_kept(model, batch_for(model))


# Models with a teacher are for inference in this library: they take no labels.
@pytest.mark.parametrize("name", [name for name in FAMILIES if "teacher" not in name])
def test_the_models_own_loss_on_two_streams(name: str) -> None:
    """What Trainer relies on: the forward pass with doubled labels gives the mean over 2N rows."""
    model = attach(FAMILIES[name](), verbose=False).train()
    batch = batch_for(model)
    torch.manual_seed(2)
    logits = logits_of(model, batch)
    y = torch.arange(N) % CLASSES if logits.ndim == 2 else torch.ones(N, LENGTH).long()
    torch.manual_seed(2)  # the same dropout
    loss = model(**batch, labels=torch.cat((y, y))).loss
    plain, mixed = (F.cross_entropy(half.flatten(0, -2), y.flatten()) for half in split(logits))
    torch.testing.assert_close(loss.as_subclass(Tensor), (plain + mixed) / 2)


def test_tensors_that_a_model_keeps_for_eval_do_not_stop_copies() -> None:
    model = attach(FAMILIES["LeViT with teacher"](), verbose=False).eval()
    batch = batch_for(model)
    expected = logits_of(model, batch)  # with gradient: what it keeps is no leaf
    assert check(model, batch)
    logits_of(model, batch)
    assert torch.equal(logits_of(export(model, batch), batch), expected)


def test_the_printed_line_names_the_positions(capsys: pytest.CaptureFixture[str]) -> None:
    attach(FAMILIES["BERT for tokens"]())
    assert "before 'classifier' (16 channels, at each of 8 positions)" in capsys.readouterr().out
    attach(FAMILIES["BERT"]())
    assert "before 'classifier' (16 channels):" in capsys.readouterr().out
