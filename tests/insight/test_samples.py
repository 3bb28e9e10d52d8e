"""Texts and tables: what the model is called with, and what a person sees of each sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import batchformer as bf
from batchformer.insight import look_at
from batchformer.insight.samples import collect, table_captions

WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "today")


class Texts(nn.Module):
    """The mean of word vectors where the mask says so, then a classifier, called by keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(len(WORDS), 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        mask = attention_mask[..., None]
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return {"logits": self.head(mean)}


def batches() -> Iterator[dict[str, Tensor]]:
    """Three batches as a Hugging Face collator gives them, each padded to its longest text."""
    draw = torch.Generator().manual_seed(0)
    for longest in (4, 7, 5):
        lengths = torch.randint(2, longest + 1, (10,), generator=draw)
        mask = (torch.arange(longest) < lengths[:, None]).long()
        ids = torch.randint(len(WORDS), (10, longest), generator=draw) * mask
        yield {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(10) % 3}


def decoded(batch: dict[str, Tensor]) -> list[str]:
    return [
        " ".join(WORDS[i] for i in row[mask.bool()])
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def test_texts_of_several_lengths_are_shown_where_images_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = bf.attach(Texts(), example=next(batches()), heads=2, verbose=False)
    seen = look_at(model, batches(), ["animal", "place", "time"], captions=decoded)
    shown = seen.arrays["batch_captions"]
    texts = [text for batch in batches() for text in decoded(batch)]
    pairs = {(t, int(y)) for b in batches() for t, y in zip(decoded(b), b["labels"], strict=True)}
    labels = seen.arrays["batch_labels"].flatten().tolist()
    assert set(zip(shown.flatten().tolist(), labels, strict=True)) <= pairs and len(texts) == 30
    model.eval()
    right = 0
    for batch in batches():
        logits = model(batch["input_ids"], batch["attention_mask"])["logits"]
        right += int((logits.argmax(1) == batch["labels"]).sum())
    assert seen.arrays["reliability_correct"][0].sum() == right, "padding changes nothing"
    assert not any(name.startswith(("cam_", "gradient_images")) for name in seen.arrays)
    page = seen.page(tmp_path / "page.html").read_text()
    assert "Inside a batch" in page and str(shown[0, 0]) in page
    assert "test images" not in page and "training images" not in page


def test_rows_of_a_table_are_shown_by_their_most_unusual_values() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    bf.attach(model, heads=2, verbose=False)
    x = torch.randn(20, 5)
    x[3, 2] = 1234.0
    names = ["age", "height", "income", "rooms", "year"]
    found = look_at(model, [(x, torch.arange(20) % 2)], columns=names).arrays
    texts = found["batch_captions"].flatten().tolist()
    assert any(text.startswith("income 1,234, ") for text in texts)
    assert (found["gradient_images_l2"] > 0).all(), "a table's values have gradients"


def test_a_column_that_never_changes_is_told_last() -> None:
    rows = torch.tensor([[7.0, 0.0, 1.0], [7.0, 0.5, 1.0], [7.0, 9.0, 1.2], [7.0, 0.0, 1.5]])
    texts = table_captions(rows)
    assert texts[2] == "column 2 9, column 3 1.2, column 1 7"
    assert table_captions(torch.tensor([[999.7], [0.5]])) == ["column 1 1,000", "column 1 0.5"]
    assert all(text.endswith("column 1 7") for text in texts)
    with pytest.raises(ValueError, match="have 3 columns, and columns= names 2"):
        table_captions(rows, ["a", "b"])


def test_what_stands_for_a_sample_without_captions() -> None:
    labels = torch.tensor([0, 1])
    ids = torch.tensor([[5, 6, 0], [7, 8, 9]])
    assert collect([(ids, labels)], 9).captions == ("5 6 0", "7 8 9")
    strings: Any = {"input_ids": ids, "text": ["one", "two\n  words"], "label": labels}
    found = collect([strings], 9)
    assert found.captions == ("one", "two words")
    assert isinstance(found.inputs, Tensor) and found.keyword == "input_ids"
    assert collect([(torch.zeros(2, 3, 4), labels)], 9).captions == ("sample 1", "sample 2")
    assert collect([(torch.zeros(2, 3, 4, 4), labels)], 9).captions is None
    long = collect([(ids, labels)], 9, captions=["x" * 1000, 7]).captions  # type: ignore[list-item]
    assert long is not None and len(long[0]) == 300 and long[0].endswith("…") and long[1] == "7"


def test_images_given_by_name_are_shown_and_not_changed() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 2)

        def forward(self, *, pixel_values: Tensor) -> Tensor:
            pixel_values.sub_(1.0)  # normalises in place
            logits: Tensor = self.head(self.conv(pixel_values).mean((2, 3)))
            return logits

    x = torch.rand(20, 3, 6, 6)
    model = bf.attach(Images(), example={"pixel_values": x[:4].clone()}, heads=2, verbose=False)
    kept = x.clone()
    found = look_at(model, [{"pixel_values": x, "labels": torch.arange(20) % 2}]).arrays
    assert found["batch_thumbnails"].shape == (1, 20, 6, 6, 3) and found["cam_layer"] == "conv"
    assert torch.equal(x, kept) and (found["gradient_images_l2"] > 0).all()


def test_what_does_not_fit_is_told() -> None:
    labels, ids = torch.tensor([0, 1]), torch.tensor([[5, 6, 0], [7, 8, 9]])
    with pytest.raises(ValueError, match="1 captions for 2 samples"):
        collect([(ids, labels)], 9, captions=["one"])
    with pytest.raises(ValueError, match="Pad all samples to one length"):
        collect([(ids, labels), (ids[:, :2], labels)], 9)
    with pytest.raises(ValueError, match="shows images themselves"):
        collect([(torch.zeros(2, 3, 4, 4), labels)], 9, captions=["a", "b"])
    with pytest.raises(TypeError, match="dict of tensors that has `labels`"):
        collect([{"input_ids": ids}], 9)
