"""A linear classifier that is trained on fixed features at one go, on their device."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.cuda_graph import Captured
from batchformer.lab.engine.optim import build_optimizer
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.encoder import make_encoder
from batchformer.lab.models.generator import with_small_weights
from batchformer.nn.module import two_streams
from batchformer.nn.randomness import drawing, seed_for
from batchformer.nn.streams import stream_loss
from batchformer.plug.attach import param_groups

#: Rows of a batch, also those that attend to one another.
BATCH = 100
ADAM = OptimConfig(name="adam", lr=1e-3, betas=(0.5, 0.999), weight_decay=0.0)
#: In the place of a step, so that nothing here is drawn as training draws it.
APART = -1


def train_classifier(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    epochs: int,
    seed: int,
    module: ModuleConfig,
    batch_size: int = BATCH,
) -> nn.Linear:
    """Softmax regression by Adam, with BatchFormer before it where `module` asks for it.

    Without BatchFormer nothing is drawn but the order, and on a GPU the step is recorded once.

    BatchFormer begins anew, mixes the rows of each batch and is dropped at the end. An epoch is cut
    into batches of `batch_size` rows or one less. The result is a function of the arguments alone:
    all draws come from the seed, whatever was drawn before, and torch's own generators are left as
    they were. Nothing is read back from the device.

    Args:
        features: (M, H).
        labels: (M,) class numbers.
        num_classes: K.
        epochs: passes over all rows.
        seed: of initial weights, order and dropout.
        module: BatchFormer's settings; ``enabled=False`` is none.
        batch_size: rows of a batch.
    """
    device = features.device
    with drawing(seed, "weights", APART):
        linear = with_small_weights(nn.Linear(features.shape[1], num_classes)).to(device)
    # Every rank has all rows, and trains the same; there is nothing to exchange.
    encoder = make_encoder(features.shape[1], replace(module, exchange=False), seed)
    trained = nn.ModuleList([linear] if encoder is None else [linear, encoder]).to(device).train()
    optimizer = build_optimizer(param_groups(trained, ADAM.lr, module.lr_factor), ADAM)
    shuffles = torch.Generator(device).manual_seed(seed_for(seed, "order", APART))
    batches = -(-len(features) // batch_size)

    def step(batch: Batch) -> dict[str, Tensor]:
        rows = batch["rows"]
        seen = features[rows]
        if encoder is not None:
            mixed_only = module.streams == "mixed_only"
            seen = encoder(seen) if mixed_only else two_streams(seen, encoder)
        loss = stream_loss(
            F.cross_entropy,
            linear(seen),
            labels[rows],
            loss_scale=module.loss_scale,
            mixed_weight=module.mixed_weight,
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {"loss": loss.detach()}

    recorded = Captured(step, device, lambda: None, _say) if _recordable(device, encoder) else None
    with drawing(seed, "dropout", APART):
        for _ in range(epochs):
            order = torch.randperm(len(features), generator=shuffles, device=device)
            for rows in order.tensor_split(batches):
                if recorded is None:
                    step({"rows": rows})
                else:
                    recorded({"rows": rows}, seed=0)
    if recorded is not None:
        # The recording takes its memory with it, which replays may still be writing to.
        torch.cuda.current_stream(device).synchronize()
    return linear.requires_grad_(False)


def _recordable(device: torch.device, encoder: nn.Module | None) -> bool:
    """Whether steps can be replayed: on a GPU, without dropout, and not on its default stream."""
    if device.type != "cuda" or encoder is not None:
        return False
    return torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


def _say(words: str) -> None:
    print(f"the classifier on features: {words}", file=sys.stderr, flush=True)
