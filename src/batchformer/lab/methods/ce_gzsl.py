"""CE-GZSL (Han et al., 2021): a classifier of unseen classes, trained on generated features."""

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
from batchformer.lab.engine.optim import build_optimizer, parameters_of
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.ce_gzsl import class_contrast, gradient_penalty, supervised_contrast
from batchformer.lab.methods.classifier import JOINT_SCALES, apply_encoder, make_encoder
from batchformer.lab.models.generator import (
    Comparator,
    Critic,
    Embedding,
    Generator,
    with_small_weights,
)
from batchformer.nn.randomness import drawing, seed_for
from batchformer.nn.streams import duplicate, match, stream_loss
from batchformer.plug.attach import param_groups

#: Channels of the embedding h, of the directions z, and of the comparator's hidden layer.
EMBEDDING, DIRECTION, COMPARATOR = 2048, 512, 2048
#: Rows of a batch of the classifier, which attend to one another.
BATCH = 100
ADAM = OptimConfig(name="adam", lr=1e-3, betas=(0.5, 0.999), weight_decay=0.0)
#: In place of a step, so that the classifier's random draws differ from those of training.
APART = -1


class CeGzsl(Method):
    """A generator against a critic, and an embedding with a comparator, trained by contrast.

    The rows of an update are ``critic_steps`` batches, one after the other
    (:meth:`rows_per_update`). Each is one step of critic, embedding and comparator, and the last is
    also the generator's. Gradients are zeroed before each step; the released code does not zero
    those of the comparator, so that they add up over an epoch. Before an evaluation a classifier of
    all K classes is trained on embeddings of the real features of seen classes and of generated
    features of unseen classes.

    ``hyper.module_at`` says where BatchFormer acts: "embedding" mixes h while embedding and
    comparator are trained, and both get both streams; "classifier" mixes h in the classifier's
    training. The generator's loss and predictions use the plain stream.

    Args:
        features: (M, D) all training rows, scaled.
        labels: (M,) their class numbers.
        attributes: (K, A) of all classes.
        seen: (S,) class numbers that are trained on.
        unseen: (U,) class numbers that are not.
        embedding: H, channels of h.
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
            raise ValueError("ce_gzsl trains on seen classes only, and labels has others too")
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
        """The critic's step: the losses of critic, embedding and comparator on one batch.

        Args:
            batch: ``x`` (N, D), ``y`` (N,), ``noise`` (N, Z) and ``share`` (N, 1).
        """
        x, y = batch["x"], batch["y"]
        attributes = self.attributes[y]
        with torch.no_grad():
            fake = self.generator(batch["noise"], attributes)
        # The critic minimises it; its negative estimates the distance of the distributions.
        difference = self.critic(fake, attributes).mean() - self.critic(x, attributes).mean()
        penalty = gradient_penalty(self.critic, x, fake, attributes, batch["share"])
        instance, classes = self.contrasts(self.streams(self.embedding(x)), y)
        loss = difference + self.hyper.gradient_penalty * penalty + instance + classes
        parts = {"distance": -difference, "penalty": penalty}
        return {"loss": loss, **parts, "instance": instance, "classes": classes}

    def generator_step(self, batch: Batch) -> dict[str, Tensor]:
        """The generator's step: its features should look real to the critic and by contrast."""
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
        return apply_encoder(self.encoder, h, self.config)

    def contrasts(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The contrast of samples, between all rows of both streams, and that of classes.

        Args:
            rows: (N, H) or (2N, H).
            y: (N,) class numbers.
        """
        temperature, scale = self.hyper.contrast_temperature, self.config.loss_scale
        z = self.embedding.direction(rows)
        instance = supervised_contrast(z, match(rows, y), temperature)
        if len(rows) != len(y):
            instance = instance * JOINT_SCALES[scale]
        scores = self.comparator(rows, self.attributes[self.seen])
        classes = stream_loss(
            lambda out, target: class_contrast(out, target, temperature),
            scores,
            self.place[y],
            loss_scale=scale,
        )
        return instance, classes

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        """The critic's steps on one part of the rows after the other, then the generator's."""
        require(
            not optimizer_step.config.ema,
            "the classifier of ce_gzsl is trained for the current weights, not for a mean of "
            "weights; set train.ema 0",
        )
        steps, rows = self.hyper.critic_steps, len(batch["y"])
        if rows % steps:
            raise ValueError(
                f"ce_gzsl needs {steps} equal batches in an update (hyper.critic-steps), and got "
                f"{rows} rows; let the feed give rows_per_update(batch_size)"
            )
        x, y = batch["x"], batch["y"]
        # Drawn first, so that arms with and without dropout get the same noise.
        noise = torch.randn(steps + 1, rows // steps, self.hyper.noise, device=x.device)
        share = torch.rand(steps, rows // steps, 1, device=x.device)
        losses, part = {}, {}
        for number, cut in enumerate(zip(x.chunk(steps), y.chunk(steps), strict=True)):
            part = {"x": cut[0], "y": cut[1], "noise": noise[number], "share": share[number]}
            losses = optimizer_step.minimise(
                self.step, part, optimizers["critic"], parameters_of(optimizers["critic"])
            )
        part["noise"] = noise[steps]
        with frozen(self.critic, self.embedding, self.comparator):
            made = optimizer_step.minimise(
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
            "ce_gzsl needs second derivatives, which torch.compile lacks; leave train.compile off"
        )

    def before_evaluation(self) -> None:
        """Train the classifier again; it depends only on the weights and the seed."""
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
        """The classifier's training data: h (M + U * synthetic, H) and class numbers."""
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


def _require_sense(module: ModuleConfig, hyper: MethodConfig) -> None:
    for name in ("noise", "gan_hidden", "critic_steps", "synthetic", "classifier_epochs"):
        value = getattr(hyper, name)
        require(value >= 1, f"hyper.{name.replace('_', '-')} is {value}, below 1")
    require(
        not hyper.swad,
        "the classifier of ce_gzsl is trained for the current weights, not for a mean of weights; "
        "leave hyper.swad off",
    )
    if not module.enabled:
        return
    require(
        module.loss_scale != "official",
        "there is no released code of CE-GZSL with BatchFormer, so no official loss; for three "
        "times the loss set train.loss-multiplier 3",
    )
    require(
        hyper.module_at == "classifier" or module.mixed_weight == 1,
        "on the embedding of ce_gzsl both streams are contrasted with each other, so the mixed "
        "stream cannot have its own weight; leave module.mixed-weight at 1",
    )


# The classifier of fixed features that an evaluation needs


def train_classifier(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    epochs: int,
    seed: int,
    module: ModuleConfig,
) -> nn.Linear:
    """Softmax regression by Adam, with a new BatchFormer before it if `module` says so.

    BatchFormer mixes the rows of each batch and is dropped at the end. Without it only the order is
    random, and on a GPU the step is captured in a CUDA graph. An epoch is cut into batches of
    ``BATCH`` rows or one less. The result depends only on the arguments: all draws come from the
    seed, and torch's own generators do not change. Nothing is read back from the device.

    Args:
        features: (M, H).
        labels: (M,) class numbers.
        seed: of initial weights, order and dropout.
        module: BatchFormer's settings; ``enabled=False`` is none.
    """
    device = features.device
    with drawing(seed, "weights", APART):
        linear = with_small_weights(nn.Linear(features.shape[1], num_classes)).to(device)
    # Every rank has all rows and trains the same classifier, so nothing is exchanged.
    encoder = make_encoder(features.shape[1], replace(module, exchange=False), seed)
    trained = nn.ModuleList([linear] if encoder is None else [linear, encoder]).to(device).train()
    optimizer = build_optimizer(param_groups(trained, ADAM.lr, module.lr_factor), ADAM)
    shuffles = torch.Generator(device).manual_seed(seed_for(seed, "order", APART))
    batches = -(-len(features) // BATCH)

    def step(batch: Batch) -> dict[str, Tensor]:
        rows = batch["rows"]
        loss = stream_loss(
            F.cross_entropy,
            linear(apply_encoder(encoder, features[rows], module)),
            labels[rows],
            loss_scale=module.loss_scale,
            mixed_weight=module.mixed_weight,
        )
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
    return linear.requires_grad_(False)


def _can_capture(device: torch.device, encoder: nn.Module | None) -> bool:
    """Whether steps can be captured: on a GPU, without dropout, and not on its default stream."""
    if device.type != "cuda" or encoder is not None:
        return False
    return torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


def _say(words: str) -> None:
    print(f"the classifier on features: {words}", file=sys.stderr, flush=True)
