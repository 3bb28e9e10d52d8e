"""Generalized zero-shot learning on generated features: what CE-GZSL, TF-VAEGAN and IZF share.

A method trains something that generates features of a class from its attributes. Before an
evaluation a softmax classifier of all classes is trained on the real features of seen classes and
on generated features of unseen classes. This classifier makes the predictions.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, require
from batchformer.lab.engine.cuda_graph import Captured
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optim import build_optimizer
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.methods.classifier import apply_encoder, loss_of_streams, make_encoder
from batchformer.lab.models.generator import with_small_weights
from batchformer.nn.module import BatchFormer
from batchformer.nn.randomness import drawing, seed_for
from batchformer.nn.streams import match
from batchformer.plug.attach import param_groups

#: Rows of one batch of the classifier; they attend to one another.
BATCH = 100
ADAM = OptimConfig(name="adam", lr=1e-3, betas=(0.5, 0.999), weight_decay=0.0)
#: Seeds get this as the step, so that the classifier's random draws differ from training's.
APART = -1


class GeneratedFeatures(Method):
    """A method whose final classifier is trained on real and on generated features.

    A subclass builds its networks, calls :meth:`add_classifier`, and writes :meth:`generate`. The
    classifier's inputs are made from features by :meth:`inputs`; by default they are the features.

    Args:
        features: (M, D) all training rows, scaled.
        attributes: (K, A) of all classes.
        labels: (M,) class numbers of the training rows.
        seen: (S,) class numbers that are trained on.
        unseen: (U,) class numbers that are not trained on.

    Attributes:
        noise_channels: Z, of the noise that features are generated from.
        place: (K,) the number of a seen class among the seen ones, -1 for others.
        classifier_module: BatchFormer's settings in the training of the classifier.
        mixed_channels: leading channels of the classifier's inputs that BatchFormer mixes.
        encoder: the BatchFormer of the last classifier's training; None without BatchFormer.
    """

    features: Tensor
    labels: Tensor
    attributes: Tensor
    seen: Tensor
    unseen: Tensor
    place: Tensor

    noise_channels: int
    mixed_channels: int
    encoder: BatchFormer | None

    def __init__(
        self,
        features: Tensor,
        attributes: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
        *,
        labels: Tensor,
        seen: Tensor,
        unseen: Tensor,
    ) -> None:
        super().__init__()
        self.hyper = hyper
        self.config, self.seed, self.module_lr_factor = module, seed, module.lr_factor
        self.classifier_module = module
        if not bool(torch.isin(labels, seen).all()):
            raise ValueError("this method trains on seen classes only, and labels has others too")
        place = torch.full((len(attributes),), -1).index_copy(0, seen, torch.arange(len(seen)))
        data = {"features": features, "labels": labels, "attributes": attributes}
        for name, tensor in {**data, "seen": seen, "unseen": unseen, "place": place}.items():
            self.register_buffer(name, tensor, persistent=False)

    def add_classifier(self, channels: int, mixed: int | None = None) -> None:
        """Make the classifier of all classes, with its initial weights.

        Args:
            channels: of :meth:`inputs`.
            mixed: leading channels that BatchFormer mixes, by default all of them.
        """
        self.mixed_channels = channels if mixed is None else mixed
        classifier = new_classifier(channels, len(self.attributes), self.seed)
        self.classifier = classifier.requires_grad_(False)

    def generate(self, noise: Tensor, y: Tensor) -> Tensor:
        """Features (N, D) of classes y (N,) from noise (N, Z)."""
        raise NotImplementedError(f"{type(self).__name__} does not implement generate()")

    def inputs(self, x: Tensor) -> Tensor:
        """Features (N, D) to inputs of the classifier (N, H)."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits as the classifier is trained: (2N, K) with shared streams; in eval (N, K)."""
        rows = mix_rows(self.encoder, self.inputs(x), self.classifier_module, self.mixed_channels)
        logits: Tensor = self.classifier(rows)
        return logits

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, K) of features (N, D), by the classifier of the last evaluation."""
        logits: Tensor = self.classifier(self.inputs(x))
        return logits

    def deployed(self) -> nn.Module:
        """Scaled features to logits: the classifier."""
        return copy.deepcopy(self.classifier)

    def before_evaluation(self) -> None:
        """Train the classifier again; it depends only on the weights and the seed."""
        rows, y = self.classifier_rows()
        classifier, encoder = train_classifier(
            rows,
            y,
            len(self.attributes),
            epochs=self.hyper.classifier_epochs,
            batch_size=self.hyper.classifier_batch,
            lr=self.hyper.classifier_lr,
            seed=self.seed,
            module=self.classifier_module,
            mixed=self.mixed_channels,
        )
        self.classifier.load_state_dict(classifier.state_dict())
        if encoder is not None and self.encoder is not None:
            self.encoder.load_state_dict(encoder.state_dict())

    def require_whole_weights(self, optimizer_step: OptimizerStep) -> None:
        """Refuse weights that are sharded over ranks."""
        require(
            optimizer_step.parallel is None or not optimizer_step.parallel.sharded,
            "the final classifier is trained between updates, where FSDP has no whole weights; set "
            "train.parallel ddp",
        )

    @torch.no_grad()
    def classifier_rows(self) -> tuple[Tensor, Tensor]:
        """The classifier's training data: inputs (M + U * synthetic, H) and class numbers."""
        device = self.features.device
        y = self.unseen.repeat_interleave(self.hyper.synthetic)
        draws = torch.Generator(device).manual_seed(seed_for(self.seed, "augmentation", APART))
        noise = torch.randn(len(y), self.noise_channels, generator=draws, device=device)
        made = self.generate(noise, y)
        return self.inputs(torch.cat((self.features, made))), torch.cat((self.labels, y))


class AdversarialFeatures(GeneratedFeatures):
    """A generator trained against a critic with a gradient penalty.

    The rows of an update are ``critic_steps`` batches, one after the other. The critic takes a step
    on each, and the generator on the last.
    """

    def critic_parts(
        self, batch: Batch, optimizer_step: OptimizerStep
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """The batches of the critic's steps, and the batch of the generator's step.

        Each has ``x`` (N, D), ``y`` (N,), ``noise`` (N, Z) and ``share`` (N, 1).
        """
        self.require_whole_weights(optimizer_step)
        steps, rows = self.hyper.critic_steps, len(batch["y"])
        if rows % steps:
            raise ValueError(
                f"an update needs {steps} equal batches (hyper.critic-steps), and got {rows} rows; "
                "let the feed give that many batches (data.batches)"
            )
        x, y = batch["x"], batch["y"]
        # Drawn first, so that arms with and without dropout get the same noise.
        noise = torch.randn(steps + 1, rows // steps, self.noise_channels, device=x.device)
        share = torch.rand(steps, rows // steps, 1, device=x.device)
        parts = [
            {"x": own, "y": labels, "noise": noise[number], "share": share[number]}
            for number, (own, labels) in enumerate(zip(x.chunk(steps), y.chunk(steps), strict=True))
        ]
        return parts, {**parts[-1], "noise": noise[steps]}


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Freeze these modules' parameters; gradients still pass through the modules."""
    trained = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()


# The classifier on fixed features, which is trained before every evaluation.


def new_classifier(channels: int, num_classes: int, seed: int) -> nn.Linear:
    """A linear classifier with small initial weights."""
    with drawing(seed, "weights", APART):
        return with_small_weights(nn.Linear(channels, num_classes))


def new_encoder(rows: Tensor, module: ModuleConfig, seed: int) -> BatchFormer | None:
    """BatchFormer for the classifier's training on rows (N, C), or None without it.

    The rows are fixed, so mixed rows start with their root mean square: one classifier fits both.
    """
    size = float(rows.square().mean().sqrt())
    # Every rank has all rows and trains the same classifier, so nothing is exchanged.
    return make_encoder(rows.shape[1], replace(module, exchange=False), seed, scale=size)


def mix_rows(encoder: BatchFormer | None, rows: Tensor, module: ModuleConfig, mixed: int) -> Tensor:
    """The streams of the classifier's inputs (N, H), of which `mixed` leading channels are mixed.

    The other channels of a mixed row are those of its sample.
    """
    if encoder is None or mixed == rows.shape[1]:
        return apply_encoder(encoder, rows, module)
    x, beside = rows.tensor_split((mixed,), dim=1)
    streams = apply_encoder(encoder, x, module)
    return torch.cat((streams, match(streams, beside)), dim=1)


def train_classifier(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    epochs: int,
    seed: int,
    module: ModuleConfig,
    batch_size: int = BATCH,
    lr: float = ADAM.lr,
    mixed: int | None = None,
) -> tuple[nn.Linear, BatchFormer | None]:
    """Softmax regression by Adam, with a new BatchFormer before it if `module` says so.

    BatchFormer mixes the rows of each batch; predictions do not use it. Without it only the order
    is random, and on a GPU the step is captured in a CUDA graph. An epoch is cut into batches of
    `batch_size` rows or one less. The result depends only on the arguments: all draws come from the
    seed, and torch's own generators do not change. Only the root mean square of the features is
    read back from the device, once.

    Args:
        features: (M, H).
        labels: (M,) class numbers.
        seed: of initial weights, order and dropout.
        module: BatchFormer's settings; ``enabled=False`` means no BatchFormer.
        mixed: leading channels that BatchFormer mixes, by default all H.
    """
    device = features.device
    mixed = features.shape[1] if mixed is None else mixed
    linear = new_classifier(features.shape[1], num_classes, seed).to(device)
    encoder = new_encoder(features[:, :mixed], module, seed)
    trained = nn.ModuleList([linear] if encoder is None else [linear, encoder]).to(device).train()
    optimizer = build_optimizer(param_groups(trained, lr, module.lr_factor), replace(ADAM, lr=lr))
    shuffles = torch.Generator(device).manual_seed(seed_for(seed, "order", APART))
    batches = -(-len(features) // batch_size)

    def step(batch: Batch) -> dict[str, Tensor]:
        rows = batch["rows"]
        logits = linear(mix_rows(encoder, features[rows], module, mixed))
        loss = loss_of_streams(F.cross_entropy, logits, labels[rows], module)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {"loss": loss.detach()}

    can_capture = _can_capture(device, encoder)
    captured = Captured(step, device, lambda: None, _say) if can_capture else None
    with drawing(seed, "dropout", APART):
        for _ in range(epochs):
            order = torch.randperm(len(features), generator=shuffles, device=device)
            for rows in order.tensor_split(batches):
                if captured is None:
                    step({"rows": rows})
                else:
                    captured({"rows": rows}, seed=0)
    if captured is not None:
        # Its memory is freed with the graph, and replays may still be writing to it.
        torch.cuda.current_stream(device).synchronize()
    return linear.requires_grad_(False), encoder


def _can_capture(device: torch.device, encoder: nn.Module | None) -> bool:
    """Whether steps can be captured: on a GPU, without dropout, and not on its default stream."""
    if device.type != "cuda" or encoder is not None:
        return False
    return torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


def _say(words: str) -> None:
    print(f"the classifier on features: {words}", file=sys.stderr, flush=True)
