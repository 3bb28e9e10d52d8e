"""BatchFormer over the samples of all ranks: the numbers of one process, except for rounding.

    pip install . scikit-learn    # in a checkout
    torchrun --nproc-per-node 2 examples/ddp_exchange.py

Three things differ from training on one device: attach(exchange=True), the model wrapped in
DistributedDataParallel, and stream_loss(exchange=True), for ranks with different numbers of
samples. Each batch is split between the ranks; those of the last batch of an epoch differ in size.
It takes seconds on CPUs (gloo) or GPUs (NCCL) and downloads nothing.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import batchformer as bf

EPOCHS = 6
BATCH = 64  # samples of all ranks together, which attend to one another


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


def main() -> None:
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    x, y = images.to(device), torch.as_tensor(digits.target).to(device)
    train, test = train_test_split(torch.arange(len(y)), test_size=0.4, random_state=0)

    torch.manual_seed(0)
    model = bf.attach(network().to(device), exchange=True, verbose=rank == 0)
    optimizer = torch.optim.AdamW(bf.param_groups(model, lr=3e-3), weight_decay=1e-2)
    if rank == 0:
        print(bf.check(model, x[:8], optimizer))  # does not wait for other ranks
    wrapped = DistributedDataParallel(model) if ranks > 1 else model

    for epoch in range(1, EPOCHS + 1):
        model.train()
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
        for batch in train[order].split(BATCH):
            own = batch.tensor_split(ranks)[rank]
            logits = wrapped(x[own])
            loss = bf.stream_loss(F.cross_entropy, logits, y[own], exchange=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        if rank == 0 and epoch % 2 == 0:
            with torch.no_grad():
                found = F.cross_entropy(model(x[test]), y[test])
            print(f"epoch {epoch}: validation loss {found:.3f}")

    if rank == 0:
        plain = bf.export(model)
        with torch.no_grad():
            accuracy = (plain(x[test]).argmax(1) == y[test]).float().mean()
        print(f"accuracy {accuracy:.1%} after training on {ranks} ranks")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
