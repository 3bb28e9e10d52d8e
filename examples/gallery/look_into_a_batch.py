"""
Looking into a batch
====================

Which samples attend to which? Whose loss changes whose features? ``look_at`` measures both on a
trained model, and this example draws them for one batch of digits with a long tail.
"""

# %%
# A network trained on a long tail: 100 images of digit 0, 10 of digit 9.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import batchformer as bf
from batchformer.insight import look_at

torch.manual_seed(0)
digits = load_digits()
x = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
y = torch.as_tensor(digits.target)
train = torch.cat([torch.nonzero(y == k)[: 100 - 10 * k, 0] for k in range(10)])
test = torch.cat([torch.nonzero(y == k)[100:150, 0] for k in range(10)])

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
)
bf.attach(model)
optimizer = torch.optim.SGD(bf.param_groups(model, lr=0.1), momentum=0.9)
for _ in range(25):
    for rows in train[torch.randperm(len(train))].split(64):
        logits = model(x[rows])
        loss = F.cross_entropy(logits, bf.match(logits, y[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# Look at it on test images. ``train_counts`` says how many training images each class had.

names = [f"digit {k}" for k in range(10)]
seen = look_at(
    model,
    DataLoader(TensorDataset(x[test], y[test]), batch_size=100),
    classes=names,
    train_counts=torch.bincount(y[train]),
)

# %%
# One batch has the class frequencies of training. Choose its rarest sample, and frame the samples
# that it attends to most.

arrays = seen.arrays
labels = arrays["batch_labels"][0]
attention = arrays["batch_attention"][0].astype(np.float32)  # (N, N) or (heads, N, N)
attention = attention.mean(0) if attention.ndim == 3 else attention
chosen = int(labels.argmax())
order = np.argsort(-attention[chosen])[:8]
figure, axes = plt.subplots(4, 16, figsize=(9, 2.6))
for index, axis in enumerate(axes.flat):
    axis.imshow(arrays["batch_thumbnails"][0, index].squeeze(), cmap="gray_r")
    axis.set(xticks=[], yticks=[])
    colour = "tab:red" if index == chosen else "tab:blue" if index in order else "0.85"
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=3 if colour != "0.85" else 1)
plt.show()
print(
    f"{names[labels[chosen]]} (red) attends most to: {', '.join(names[labels[i]] for i in order)}"
)

# %%
# Attention between classes, relative to uniform attention: 1 is what chance would give.

classes = np.array(
    [[attention[labels == a][:, labels == b].mean() for b in range(10)] for a in range(10)]
)
figure, axis = plt.subplots(figsize=(4.4, 3.6))
shown = axis.imshow(classes * len(labels), cmap="PuOr", vmin=0.7, vmax=1.3)
axis.set(xlabel="attended class", ylabel="attending class", xticks=range(10), yticks=range(10))
figure.colorbar(shown, label="times uniform")
plt.show()

# %%
# The same and more as one page that needs no other file, with batches to click into.

page = Path(tempfile.mkdtemp()) / "relations.html"
seen.page(page)
print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB")
