"""TF-VAEGAN (Narayan et al., 2020): a VAE and a GAN of features, with feedback from a decoder."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.distributed.gradients import mean_over_ranks
from batchformer.lab.engine.optim import build_optimizer, parameters_of
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.ce_gzsl import gradient_penalty
from batchformer.lab.losses.tf_vaegan import adapted_weight, decoding_error, vae_loss
from batchformer.lab.methods.generated_features import AdversarialFeatures, frozen, new_encoder
from batchformer.lab.models.generator import Critic
from batchformer.lab.models.tf_vaegan import (
    Feedback,
    FeedbackGenerator,
    Posterior,
    SemanticDecoder,
    WithDecoded,
)
from batchformer.nn.randomness import drawing

#: Adam's betas for the posterior: torch's defaults, which in the released code only it has.
POSTERIOR_BETAS = (0.9, 0.999)


class TfVaegan(AdversarialFeatures):
    """A conditional VAE whose decoder is a WGAN's generator, and a decoder of attributes.

    The semantic decoder predicts the attributes of a class from its features. Its hidden layer h
    for generated features goes through the feedback network and is added to the generator's hidden
    layer. The generator then generates again. No gradient passes through h into the decoder or the
    first generation.

    Each batch of an update gives a step of the decoder, then one of the critic. The last batch also
    gives one of posterior, generator and decoder together. Epochs alternate, as in the released
    code: those with an even number, from 0, are without feedback; those with an odd number have it
    and train the feedback network too. So one epoch of the released code is two here. The weight of
    the gradient penalty follows the penalty, update by update.

    The final classifier sees [x, decoded attributes, h], of features generated with feedback. Our
    choice: BatchFormer mixes x in its training, and a mixed row has the decoded attributes and h of
    its own sample.
    """

    penalty_weight: Tensor

    def __init__(self, features: Tensor, attributes: Tensor, **options: Any) -> None:
        super().__init__(features, F.normalize(attributes, dim=1), **options)
        hyper, channels, dim = self.hyper, attributes.shape[1], features.shape[1]
        self.noise_channels, hidden = hyper.noise, hyper.gan_hidden
        with drawing(self.seed, "weights"):
            self.posterior = Posterior(dim, channels, hidden, hyper.noise)
            self.generator = FeedbackGenerator(channels, hyper.noise, hidden, dim)
            self.critic = Critic(dim, channels, hidden)
            self.decoder = SemanticDecoder(dim, hidden, channels)
            self.feedback = Feedback(hidden)
        self.register_buffer("penalty_weight", torch.tensor(hyper.gradient_penalty))
        self.with_feedback = False
        self.add_classifier(dim + channels + hidden, mixed=dim)
        self.encoder = new_encoder(features, self.config, self.seed)

    def begin_epoch(self, epoch: int) -> None:
        self.with_feedback = epoch % 2 == 1

    def phase(self) -> Hashable:
        return self.with_feedback

    def make(self, noise: Tensor, attributes: Tensor, with_feedback: bool) -> Tensor:
        """Features (N, D) from noise (N, Z) and attributes (N, A), generated once or twice."""
        if not with_feedback:
            made: Tensor = self.generator(noise, attributes)
            return made
        with torch.no_grad():
            h = self.decoder.embed(self.generator(noise, attributes))
        again: Tensor = self.generator(noise, attributes, self.hyper.feedback * self.feedback(h))
        return again

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Noise (N, Z) from the posterior of a batch, and its mean and log variance."""
        mean, log_variance = self.posterior(batch["x"], self.attributes[batch["y"]])
        return mean + batch["noise"] * (0.5 * log_variance).exp(), mean, log_variance

    def decoder_step(self, batch: Batch) -> dict[str, Tensor]:
        """The decoder's own step: its error on real features."""
        error = decoding_error(self.decoder(batch["x"]), self.attributes[batch["y"]])
        return {"loss": self.hyper.decoding * error}

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The critic's step on one batch.

        Args:
            batch: ``x`` (N, D), ``y`` (N,), ``noise`` (N, Z) and ``share`` (N, 1).
        """
        x, attributes = batch["x"], self.attributes[batch["y"]]
        with torch.no_grad():
            fake = self.make(self.draw(batch)[0], attributes, self.with_feedback)
        difference = self.critic(fake, attributes).mean() - self.critic(x, attributes).mean()
        penalty = gradient_penalty(self.critic, x, fake, attributes, batch["share"])
        loss = self.hyper.adversarial * (difference + self.penalty_weight * penalty)
        return {"loss": loss, "distance": -difference, "penalty": penalty}

    def generator_step(self, batch: Batch) -> dict[str, Tensor]:
        """The step of posterior, generator, decoder and, with feedback, of the feedback network."""
        attributes = self.attributes[batch["y"]]
        noise, mean, log_variance = self.draw(batch)
        made = self.make(noise, attributes, self.with_feedback)
        vae = vae_loss(made, batch["x"], mean, log_variance)
        judged = self.critic(made, attributes).mean()
        error = decoding_error(self.decoder(made), attributes)
        loss = vae - self.hyper.adversarial * judged + self.hyper.decoding * error
        return {"loss": loss, "vae": vae, "decoding": error}

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        """A step of decoder and critic on each part of the rows, then one step of the generator.

        Decoder and generator share an optimizer, which skips parameters without a gradient.
        """
        critic, generator = optimizers["critic"], optimizers["generator"]
        parts, last = self.critic_parts(batch, optimizer_step)
        losses: dict[str, Tensor] = {}
        penalties = []
        for part in parts:
            optimizer_step.minimise(self.decoder_step, part, generator, self.decoder.parameters())
            losses = optimizer_step.minimise(self.step, part, critic, self.critic.parameters())
            penalties.append(losses["penalty"])
        penalty = mean_over_ranks(torch.stack(penalties).mean())
        self.penalty_weight.copy_(adapted_weight(self.penalty_weight, penalty))
        with frozen(self.critic):
            made = optimizer_step.minimise(
                self.generator_step, last, generator, parameters_of(generator)
            )
        of_generator = {"generator": made["loss"], "vae": made["vae"], "decoding": made["decoding"]}
        return {**losses, **of_generator, "penalty_weight": self.penalty_weight.clone()}

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        slow = optim.lr * self.hyper.feedback_lr_factor
        both: list[nn.Module] = [self.generator, self.decoder]
        generator: list[dict[str, Any]] = [
            {"params": list(self.posterior.parameters()), "betas": POSTERIOR_BETAS},
            {"params": [p for network in both for p in network.parameters()]},
            {"params": list(self.feedback.parameters()), "lr": slow},
        ]
        return {
            "critic": build_optimizer([{"params": self.critic.parameters()}], optim),
            "generator": build_optimizer(generator, optim),
        }

    def generate(self, noise: Tensor, y: Tensor) -> Tensor:
        return self.make(noise, self.attributes[y], with_feedback=True)

    def inputs(self, x: Tensor) -> Tensor:
        """[x, decoded attributes, h] (N, D + A + H) of features (N, D)."""
        rows: Tensor = WithDecoded(self.decoder)(x)
        return rows

    def deployed(self) -> nn.Module:
        """Scaled features to logits: the decoder and the classifier."""
        return copy.deepcopy(nn.Sequential(WithDecoded(self.decoder), self.classifier))
