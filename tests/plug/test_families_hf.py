"""attach, check, detach and export on Hugging Face classifiers, from tiny random configurations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import attach, check, export, split
from helpers.promises import assert_promises_are_kept
from helpers.tiny_transformers import tiny

N, LENGTH, CLASSES = 5, 7, 3
LABELS = {"num_labels": CLASSES}
PATCHES = {"image_size": 16, "patch_size": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", PATCHES),
    "ConvNext": (
        "ConvNextForImageClassification",
        {"image_size": 32, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "sizes": LABELS},
    ),
    "ResNet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "Swin": (
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "window_size": 4}
        | {"num_heads": [2, 2], "sizes": LABELS},
    ),
    "DeiT with teacher": ("DeiTForImageClassificationWithTeacher", PATCHES),
    "LeViT with teacher": (
        "LevitForImageClassificationWithTeacher",
        {"image_size": 64, "hidden_sizes": [16] * 3, "depths": [1] * 3, "key_dim": [4] * 3}
        | {"num_attention_heads": [2] * 3},
    ),
    "BERT": ("BertForSequenceClassification", {}),
    "RoBERTa": ("RobertaForSequenceClassification", {}),
    "DistilBERT": ("DistilBertForSequenceClassification", {"hidden_dim": 16}),
    "BERT for tokens": ("BertForTokenClassification", {}),
}


def build(name: str) -> Any:
    kind, settings = FAMILIES[name]
    made = tiny(kind, **settings)
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


def logits_of(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return torch.as_tensor(model(**batch).logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_promise_is_kept(name: str) -> None:
    model = build(name)
    assert_promises_are_kept(model, batch_for(model))


# Models with a teacher are for inference in this library: they take no labels.
@pytest.mark.parametrize("name", [name for name in FAMILIES if "teacher" not in name])
def test_the_models_own_loss_on_two_streams(name: str) -> None:
    """What Trainer relies on: the forward pass with doubled labels gives the mean over 2N rows."""
    model = attach(build(name), verbose=False).train()
    batch = batch_for(model)
    torch.manual_seed(2)
    logits = logits_of(model, batch)
    y = torch.arange(N) % CLASSES if logits.ndim == 2 else torch.ones(N, LENGTH).long()
    torch.manual_seed(2)  # the same dropout
    loss = model(**batch, labels=torch.cat((y, y))).loss
    plain, mixed = (F.cross_entropy(half.flatten(0, -2), y.flatten()) for half in split(logits))
    torch.testing.assert_close(loss.as_subclass(Tensor), (plain + mixed) / 2)


def test_tensors_that_a_model_keeps_for_eval_do_not_stop_copies() -> None:
    model = attach(build("LeViT with teacher"), verbose=False).eval()
    batch = batch_for(model)
    expected = logits_of(model, batch)  # with gradient: what it keeps is no leaf
    assert check(model, batch)
    logits_of(model, batch)
    assert torch.equal(logits_of(export(model, batch), batch), expected)


def test_the_printed_line_names_the_positions(capsys: pytest.CaptureFixture[str]) -> None:
    attach(build("BERT for tokens"))
    assert "before 'classifier' (16 channels, at each of 8 positions)" in capsys.readouterr().out
    attach(build("BERT"))
    assert "before 'classifier' (16 channels):" in capsys.readouterr().out
