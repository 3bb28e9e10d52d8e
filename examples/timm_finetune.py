"""BatchFormer in a timm fine-tuning loop with mixup: soft targets, an existing optimizer.

    pip install batchformer timm scikit-learn
    python examples/timm_finetune.py

It runs on a CPU in seconds, with a tiny network that starts from random weights, and downloads
nothing. For a real run, name another model and pass --pretrained.
"""

from __future__ import annotations

import argparse

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.utils.data import DataLoader, TensorDataset

import batchformer as bf

EPOCHS, CLASSES, SIDE = 6, 10, 32


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Handwritten digits, enlarged to the smallest image that the network accepts."""
    found = load_digits()
    x = torch.as_tensor(found.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    x = F.interpolate(x, (SIDE, SIDE), mode="bilinear")
    y = torch.as_tensor(found.target)
    train, test = train_test_split(torch.arange(len(y)), test_size=0.4, stratify=y, random_state=0)
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def main(name: str, pretrained: bool) -> None:
    torch.manual_seed(0)
    train, test = digits()
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)  # mixup: even batches
    model = timm.create_model(name, pretrained=pretrained, num_classes=CLASSES, in_chans=1)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05)

    bf.attach(model, optimizer=optimizer)  # before the scheduler, which reads the groups
    scheduler = CosineLRScheduler(optimizer, t_initial=EPOCHS, lr_min=1e-5)
    print(bf.check(model, next(iter(loader)), optimizer))

    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=CLASSES)
    criterion = SoftTargetCrossEntropy()
    x, y = test.tensors
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in loader:
            inputs, targets = mixup(images, labels)  # targets: (N, K), soft
            logits = model(inputs)  # (2N, K)
            loss = criterion(logits, bf.match(logits, targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step(epoch + 1)
        if epoch % 3 == 2:
            model.eval()
            with torch.no_grad():
                logits = model(x)
                held_out = F.cross_entropy(logits, bf.match(logits, y))
            print(f"epoch {epoch + 1}: validation loss {held_out:.3f}")

    plain = bf.export(model)
    with torch.no_grad():
        accuracy = (plain(x).argmax(1) == y).float().mean()
    print(f"accuracy {accuracy:.1%} with {type(plain).__name__}, BatchFormer removed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="test_resnet")
    parser.add_argument("--pretrained", action="store_true", help="download timm's weights")
    options = parser.parse_args()
    main(options.model, options.pretrained)
