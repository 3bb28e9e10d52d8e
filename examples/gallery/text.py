"""
Hugging Face: a long tail of texts
==================================

Which package does a docstring come from? The texts are the docstrings of Python's own library, so
nothing is downloaded, and the classes are as unequal as real ones. A small BERT starts from random
weights; for a real run use ``AutoModelForSequenceClassification.from_pretrained``.
"""

# %%
# Docstrings of eight packages, and how many of each there are.

import importlib
import inspect
import pkgutil
import re
import tempfile
import zlib
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import batchformer as bf
from batchformer.insight import look_at

PACKAGES = ["unittest", "email", "asyncio", "logging", "xml", "json", "concurrent", "wsgiref"]


def docstrings(package: str) -> list[str]:
    """The docstrings of all functions and classes of a package, sorted."""
    texts = set()
    root = importlib.import_module(package)
    names = [found.name for found in pkgutil.walk_packages(root.__path__, f"{package}.")]
    for name in [package, *names]:
        if "__main__" in name or "windows" in name:
            continue
        for _, thing in inspect.getmembers(importlib.import_module(name)):
            if str(getattr(thing, "__module__", "")).startswith(package):
                members = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
                texts |= {m.__doc__ for m in members if callable(m) and len(m.__doc__ or "") > 30}
    return sorted(texts)


texts = [docstrings(package) for package in PACKAGES]
print({package: len(found) for package, found in zip(PACKAGES, texts, strict=True)})

# %%
# Words become numbers by their hash. A fourth of each class, spread evenly, is the test set.

LENGTH, WORDS = 32, 4096


def tokens(text: str) -> list[int]:
    words = re.findall(r"[a-z]+", text.lower())[:LENGTH]
    ids = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words]
    return ids + [0] * (LENGTH - len(ids))


rows = [
    (tokens(text), label, number % 4 == 0)
    for label, found in enumerate(texts)
    for number, text in enumerate(found)
]
x = torch.tensor([row[0] for row in rows])
y = torch.tensor([row[1] for row in rows])
test = torch.tensor([row[2] for row in rows])

# %%
# The model is called by keywords, as Hugging Face models are. ``attach`` finds its classifier.


def build() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=LENGTH,
            num_labels=len(PACKAGES),
        )
    )


def train(model: BertForSequenceClassification) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(bf.param_groups(model, lr=1e-3), weight_decay=0.01)
    data = TensorDataset(x[~test], y[~test])
    for _ in range(6):
        model.train()
        for ids, labels in DataLoader(data, batch_size=64, shuffle=True):
            logits = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
            loss = F.cross_entropy(logits, bf.match(logits, labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


baseline, model = build(), build()
bf.attach(model)
ids = x[~test][:8]
print(bf.check(model, {"input_ids": ids, "attention_mask": (ids > 0).long()}))

# %%
# Train both, and compare the accuracy by class. One seed shows how to do it; it does not show
# which is better. ``batchformer compare`` repeats a training over paired seeds.

train(baseline)
train(model)
plain = bf.export(model)
scores: dict[str, list[float]] = {"without": [], "with BatchFormer": []}
for label in range(len(PACKAGES)):
    ids = x[test & (y == label)]
    for name, network in zip(scores, (baseline.eval(), plain), strict=True):
        with torch.no_grad():
            logits = network(input_ids=ids, attention_mask=(ids > 0).long()).logits
        scores[name].append(100 * float((logits.argmax(1) == label).float().mean()))

counts = [int((~test & (y == label)).sum()) for label in range(len(PACKAGES))]
order = sorted(range(len(PACKAGES)), key=lambda label: -counts[label])
figure, axis = plt.subplots(figsize=(8, 3))
for shift, (name, values) in zip((-0.2, 0.2), scores.items(), strict=True):
    axis.bar([k + shift for k in range(len(order))], [values[k] for k in order], 0.4, label=name)
axis.set_xticks(range(len(order)), [f"{PACKAGES[k]}\n{counts[k]} texts" for k in order], fontsize=8)
axis.set_ylabel("accuracy, percent")
axis.legend()
plt.show()
for name, values in scores.items():
    print(f"{name}: mean over classes {sum(values) / len(values):.1f}%")

# %%
# Which texts attend to which? ``look_at`` writes a page with batches to click into. Here the model
# is called by keywords, so the loader gives dicts; ``captions`` are the texts that the page shows.

loader = [
    {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}
    for ids, labels in zip(x[test].split(64), y[test].split(64), strict=True)
]
captions = [text for found in texts for text in found[::4]]
seen = look_at(model, loader, PACKAGES, captions=captions, train_counts=counts)
page = seen.page(Path(tempfile.mkdtemp()) / "texts.html")
print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB")
first = seen.arrays["batch_captions"][0, 0]
print(f"The first text of the first batch: {first[:60]} ...")
