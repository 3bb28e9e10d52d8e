"""CE-GZSL (Han et al., 2021): unseen classes by features made of attributes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, require
from batchformer.lab.engine.cuda_graph import Captured
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optim import build_optimizer
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.contrast import class_contrast, supervised_contrast
from batchformer.lab.losses.wgan import critic_difference, gradient_penalty
from batchformer.lab.methods.classifier import make_encoder
from batchformer.lab.models.generator import (
    Comparator,
    Critic,
    Embedding,
    Generator,
    with_small_weights,
)
from batchformer.nn.module import two_streams
from batchformer.nn.randomness import drawing, seed_for
from batchformer.nn.streams import duplicate, match, stream_loss
from batchformer.plug.attach import param_groups

# A linear classifier that is trained on fixed features at one go, on their device.

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


# CE-GZSL (Han et al., 2021): unseen classes by features made of attributes, in an embedding that
# is trained by contrast.

#: Channels of the embedding h, of the directions z, and of the comparator's hidden layer.
EMBEDDING, DIRECTION, COMPARATOR = 2048, 512, 2048
#: By how much the contrast of all 2N rows is multiplied.
SCALES = {"mean": 1.0, "sum": 2.0}


class CeGzsl(Method):
    """Generator against critic, and an embedding with a comparator that both are judged by.

    An update holds ``critic_steps`` batches one after the other in its rows
    (:meth:`rows_per_update`): each is one step of critic, embedding and comparator, and the last is
    also the generator's. Gradients are zeroed before each step; the released code forgets those of
    the comparator, which then add up over an epoch. Before an evaluation a classifier of all K
    classes is trained on embeddings of the real features and of made ones of the unseen classes.

    BatchFormer, by ``hyper.module_at``: "embedding" mixes h while embedding and comparator are
    trained, and both see both streams; "classifier" mixes h in the classifier's training. The
    generator is judged by the plain stream, and predictions are made by it.

    Args:
        features: (M, D) all training rows, as networks see them.
        labels: (M,) their class numbers.
        attributes: (K, A) of all classes.
        seen: (S,) class numbers that are trained on.
        unseen: (U,) class numbers that are not.
        module: BatchFormer's settings.
        seed: of the initial weights and of the classifier's training.
        hyper: module_at, noise, gan_hidden, contrast, contrast_temperature, gradient_penalty,
            critic_steps, synthetic, classifier_epochs.
        embedding: H, channels of h.
        direction: channels of z, in which samples are contrasted.
        comparator: channels of the comparator's hidden layer.
    """

    features: Tensor
    labels: Tensor
    attributes: Tensor
    seen: Tensor
    unseen: Tensor
    place: Tensor

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        attributes: Tensor,
        seen: Tensor,
        unseen: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
        embedding: int = EMBEDDING,
        direction: int = DIRECTION,
        comparator: int = COMPARATOR,
    ) -> None:
        super().__init__()
        self.hyper = hyper = hyper or MethodConfig()
        self.config, self.seed, self.module_lr_factor = module, seed, module.lr_factor
        _require_sense(module, hyper)
        classes, channels = attributes.shape
        place = torch.full((classes,), -1).index_copy(0, seen, torch.arange(len(seen)))
        data = {"features": features, "labels": labels, "attributes": attributes}
        for name, tensor in {**data, "seen": seen, "unseen": unseen, "place": place}.items():
            self.register_buffer(name, tensor, persistent=False)
        if not bool(torch.isin(labels, seen).all()):
            raise ValueError("ce_gzsl is trained on seen classes alone; labels name others too")
        with drawing(seed, "weights"):
            dim = features.shape[1]
            self.generator = Generator(channels, hyper.noise, hyper.gan_hidden, dim)
            self.critic = Critic(dim, channels, hyper.gan_hidden)
            self.embedding = Embedding(dim, embedding, direction)
            self.comparator = Comparator(embedding, channels, comparator)
        self.classifier = nn.Linear(embedding, classes).requires_grad_(False)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        inside = hyper.module_at == "embedding"
        self.encoder = make_encoder(embedding, module, seed) if inside else None

    def rows_per_update(self, batch_size: int) -> int:
        """Rows of an update whose steps each take `batch_size`."""
        return self.hyper.critic_steps * batch_size

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The critic's step: how well it, the embedding and the comparator do on one batch.

        Args:
            batch: ``x`` (N, D), ``y`` (N,), ``noise`` (N, Z) and ``share`` (N, 1).
        """
        x, y = batch["x"], batch["y"]
        attributes = self.attributes[y]
        with torch.no_grad():
            fake = self.generator(batch["noise"], attributes)
        difference = critic_difference(self.critic(fake, attributes), self.critic(x, attributes))
        penalty = gradient_penalty(self.critic, x, fake, attributes, batch["share"])
        instance, classes = self.contrasts(self.streams(self.embedding(x)), y)
        loss = difference + self.hyper.gradient_penalty * penalty + instance + classes
        parts = {"distance": -difference, "penalty": penalty}
        return {"loss": loss, **parts, "instance": instance, "classes": classes}

    def generator_step(self, batch: Batch) -> dict[str, Tensor]:
        """How real the generator's features look, to the critic and by contrast."""
        y, temperature = batch["y"], self.hyper.contrast_temperature
        attributes = self.attributes[y]
        fake = self.generator(batch["noise"], attributes)
        h = self.embedding(fake)
        z = self.embedding.direction(h)
        with torch.no_grad():
            real = self.embedding.direction(self.embedding(batch["x"]))
        instance = supervised_contrast(torch.cat((z, real)), duplicate(y), temperature)
        scores = self.comparator(h, self.attributes[self.seen])
        classes = class_contrast(scores, self.place[y], temperature)
        judged = self.critic(fake, attributes).mean()
        return {"loss": self.hyper.contrast * (instance + classes) - judged}

    def forward(self, x: Tensor) -> Tensor:
        """The comparator's scores of seen classes, as trained (2N, S); in eval (N, S)."""
        scores: Tensor = self.comparator(
            self.streams(self.embedding(x)), self.attributes[self.seen]
        )
        return scores

    def streams(self, h: Tensor) -> Tensor:
        """What embedding and comparator are trained on: (2N, H) of h (N, H) with shared streams."""
        if self.encoder is None:
            return h
        mixed_only = self.config.streams == "mixed_only"
        return self.encoder(h) if mixed_only else two_streams(h, self.encoder)

    def contrasts(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Contrast of samples, all rows of both streams with one another, and that of classes.

        Args:
            rows: (N, H) or (2N, H).
            y: (N,) class numbers.
        """
        temperature, scale = self.hyper.contrast_temperature, self.config.loss_scale
        z = self.embedding.direction(rows)
        instance = supervised_contrast(z, match(rows, y), temperature)
        if len(rows) != len(y):
            instance = instance * SCALES[scale]
        scores = self.comparator(rows, self.attributes[self.seen])
        classes = stream_loss(
            lambda out, target: class_contrast(out, target, temperature),
            scores,
            self.place[y],
            loss_scale=scale,
        )
        return instance, classes

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: OptimizerStep
    ) -> dict[str, Tensor]:
        """The critic's steps on one part of the rows after the other, then the generator's."""
        require(
            not mechanics.config.ema,
            "the classifier of ce_gzsl is trained for the weights of an update, not for a mean of "
            "them; set train.ema 0",
        )
        steps, rows = self.hyper.critic_steps, len(batch["y"])
        if rows % steps:
            raise ValueError(
                f"ce_gzsl takes {steps} batches at a time (hyper.critic-steps), and {rows} rows do "
                "not make as many of one size; ask the feed for rows_per_update(batch_size)"
            )
        x, y = batch["x"], batch["y"]
        # Drawn before all else: with dropout or without, the arms see the same noise.
        noise = torch.randn(steps + 1, rows // steps, self.hyper.noise, device=x.device)
        share = torch.rand(steps, rows // steps, 1, device=x.device)
        losses, part = {}, {}
        for number, cut in enumerate(zip(x.chunk(steps), y.chunk(steps), strict=True)):
            part = {"x": cut[0], "y": cut[1], "noise": noise[number], "share": share[number]}
            losses = mechanics.minimise(
                self.step, part, optimizers["critic"], _parameters(optimizers["critic"])
            )
        part["noise"] = noise[steps]
        with fixed(self.critic, self.embedding, self.comparator):
            made = mechanics.minimise(
                self.generator_step, part, optimizers["generator"], self.generator.parameters()
            )
        return {**losses, "generator": made["loss"]}

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        trained: list[nn.Module] = [self.critic, self.embedding, self.comparator]
        if self.encoder is not None:
            trained.append(self.encoder)
        critic = param_groups(nn.ModuleList(trained), optim.lr, self.module_lr_factor)
        generator = param_groups(self.generator, optim.lr)
        return {
            "critic": build_optimizer(critic, optim),
            "generator": build_optimizer(generator, optim),
        }

    def compile_step(self) -> None:
        raise ValueError(
            "ce_gzsl differentiates a gradient, which compiled code cannot; leave train.compile off"
        )

    def before_evaluation(self) -> None:
        """Train the classifier anew; the same weights give the same, whatever was drawn before."""
        hyper = self.hyper
        inside = hyper.module_at == "embedding"
        h, y = self.classifier_rows()
        trained = train_classifier(
            h,
            y,
            len(self.attributes),
            epochs=hyper.classifier_epochs,
            seed=self.seed,
            module=ModuleConfig(enabled=False) if inside else self.config,
        )
        self.classifier.load_state_dict(trained.state_dict())

    @torch.no_grad()
    def classifier_rows(self) -> tuple[Tensor, Tensor]:
        """What the classifier is trained on: h (M + U * synthetic, H) and class numbers."""
        device = self.features.device
        y = self.unseen.repeat_interleave(self.hyper.synthetic)
        draws = torch.Generator(device).manual_seed(seed_for(self.seed, "augmentation", APART))
        noise = torch.randn(len(y), self.hyper.noise, generator=draws, device=device)
        made = self.generator(noise, self.attributes[y])
        return self.embedding(torch.cat((self.features, made))), torch.cat((self.labels, y))

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, K) of features (N, D), by the classifier of the last evaluation."""
        logits: Tensor = self.classifier(self.embedding(x))
        return logits

    def deployed(self) -> nn.Module:
        """Features to logits: the embedding's layer and the classifier."""
        layers = nn.Sequential(self.embedding.hidden, nn.ReLU(), self.classifier)
        return copy.deepcopy(layers)


@contextmanager
def fixed(*modules: nn.Module) -> Iterator[None]:
    """Let gradients pass through these, and none be kept for their parameters."""
    trained = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _require_sense(module: ModuleConfig, hyper: MethodConfig) -> None:
    for name in ("noise", "gan_hidden", "critic_steps", "synthetic", "classifier_epochs"):
        value = getattr(hyper, name)
        require(value >= 1, f"hyper.{name.replace('_', '-')} is {value}, below 1")
    require(
        not hyper.swad,
        "the classifier of ce_gzsl is trained for the weights of an update, not for a mean of "
        "them; leave hyper.swad off",
    )
    if not module.enabled:
        return
    require(
        module.loss_scale != "official",
        "CE-GZSL with BatchFormer was never released, so it has no official loss; for three times "
        "its loss set train.loss-multiplier 3",
    )
    require(
        hyper.module_at == "classifier" or module.mixed_weight == 1,
        "on the embedding of ce_gzsl both streams are contrasted with each other, so the mixed one "
        "has no weight of its own; leave module.mixed-weight at 1",
    )
