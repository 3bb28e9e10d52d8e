"""BatchFormer in a plain PyTorch loop: long-tailed digits, from attach to the exported model.

    pip install . scikit-learn    # in a checkout
    python examples/plain_pytorch.py

Five calls are BatchFormer's: attach, param_groups, check, match and export. It takes seconds on a
CPU and downloads nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import batchformer as bf

EPOCHS = 15
LARGEST_CLASS, SMALLEST_CLASS = 80, 8  # training images of digit 0 and of digit 9


def long_tailed_digits() -> tuple[TensorDataset, TensorDataset]:
    """8x8 images, in which each training digit is rarer than the one before it."""
    digits = load_digits()
    x = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.as_tensor(digits.target)
    train, test = train_test_split(torch.arange(len(y)), test_size=0.4, stratify=y, random_state=0)
    ratio = SMALLEST_CLASS / LARGEST_CLASS
    kept = torch.cat(
        [train[y[train] == k][: round(LARGEST_CLASS * ratio ** (k / 9))] for k in range(10)]
    )
    return TensorDataset(x[kept], y[kept]), TensorDataset(x[test], y[test])


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One line for training (2N rows) and for validation (N rows)."""
    logits = model(x)
    return F.cross_entropy(logits, bf.match(logits, y))


def main(save_to: Path) -> None:
    torch.manual_seed(0)
    train, test = long_tailed_digits()
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)

    model = bf.attach(network())
    optimizer = torch.optim.AdamW(bf.param_groups(model, lr=3e-3), weight_decay=1e-2)
    print(bf.check(model, next(iter(loader)), optimizer))

    x, y = test.tensors
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for inputs, targets in loader:
            loss = loss_of(model, inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 5 == 0:
            model.eval()
            with torch.no_grad():
                print(f"epoch {epoch}: validation loss {loss_of(model, x, y):.3f}")

    plain = bf.export(model)
    save_to.parent.mkdir(parents=True, exist_ok=True)
    torch.save(plain.state_dict(), save_to)

    loaded = network().eval()  # no BatchFormer from here on
    loaded.load_state_dict(torch.load(save_to, weights_only=True))
    with torch.no_grad():
        hits = (loaded(x).argmax(1) == y).float()
    rare = hits[y >= 7].mean()
    print(f"accuracy {hits.mean():.1%}, on the three rarest digits {rare:.1%}; saved {save_to}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save-to", type=Path, default=Path("runs/digits.pt"))
    main(parser.parse_args().save_to)
