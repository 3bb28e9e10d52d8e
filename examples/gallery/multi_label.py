"""
Several labels for one image
============================

Each image shows three digits, some far rarer than others; the network says which digits are there.
Targets are rows of zeros and ones, and ``match`` doubles them like any others.
"""

# %%
# Images of 8 x 24 pixels. Digit k is drawn half as often as digit k - 2.

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import batchformer as bf

digits = load_digits()
images = torch.as_tensor(digits.images, dtype=torch.float32) / 16
labels = torch.as_tensor(digits.target)
of_digit = [torch.nonzero(labels == digit)[:, 0] for digit in range(10)]


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (count, 1, 8, 24) and labels (count, 10)."""
    generator = torch.Generator().manual_seed(seed)
    weights = 0.5 ** (torch.arange(10) / 2)
    chosen = torch.multinomial(weights.expand(count, 10), 3, generator=generator)
    x = torch.empty(count, 1, 8, 24)
    for row in range(count):
        for place, digit in enumerate(chosen[row].tolist()):
            pool = of_digit[digit]
            one = pool[torch.randint(len(pool), (1,), generator=generator)]
            x[row, 0, :, 8 * place : 8 * place + 8] = images[one]
    return x, torch.zeros(count, 10).scatter(1, chosen, 1.0)


x, y = draw(1200, seed=0)
x_test, y_test = draw(600, seed=1)
figure, axes = plt.subplots(1, 4, figsize=(8, 1.4))
for axis, image, target in zip(axes, x, y, strict=False):
    axis.imshow(image[0], cmap="gray_r")
    axis.set_title(", ".join(str(int(k)) for k in target.nonzero()), fontsize=9)
    axis.axis("off")
plt.show()

# %%
# The network, the one line, and the proof.

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(64 * 2 * 6, 64), nn.ReLU(), nn.Linear(64, 10)),
)
bf.attach(model, example=x[:2])  # the images are not square: show it two
print(bf.check(model, x[:8]))

# %%
# The loss is the usual one for several labels.

optimizer = torch.optim.AdamW(bf.param_groups(model, lr=2e-3))
for epoch in range(12):
    for rows in torch.randperm(len(x)).split(64):
        logits = model(x[rows])
        loss = F.binary_cross_entropy_with_logits(logits, bf.match(logits, y[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 4 == 3:
        print(f"epoch {epoch + 1}: loss {loss:.3f}")

# %%
# How many of the images with a digit are found, from the most frequent digit to the rarest.

plain = bf.export(model, x[:2])
with torch.no_grad():
    found = plain(x_test) > 0
recall = [float(found[y_test[:, k] == 1, k].float().mean()) for k in range(10)]
figure, axis = plt.subplots(figsize=(6, 2.4))
axis.bar(range(10), [100 * value for value in recall])
axis.set(xlabel="digit, from frequent to rare", ylabel="found, percent", xticks=range(10))
plt.show()
