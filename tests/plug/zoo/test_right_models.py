"""Every family of models with BatchFormer in it, put in correctly: check accuses none of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision.models as tv
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torchvision.models.resnet import BasicBlock

from batchformer import BatchFormer, attach, check, param_groups, two_streams
from batchformer.nn.encoder import EncoderWeights, batch_former
from batchformer.plug.findings import ATTEND, EVAL, LEARN, MEMBER, SHARED, STAY, STREAMS
from helpers import mixing_models
from helpers.mixing_models import C, Deep, Gated, K, Mixing, TwoPlaces, deep, made
from helpers.tiny_transformers import tiny

N = 6
RIGHT: dict[str, Callable[[], Any]] = {}
Build = Callable[[], Any]


def right(build: Any) -> Any:
    """Enter a model class or a function that builds a model: alone, or with batch and options."""
    RIGHT[build.__name__] = build
    return build


def attached(name: str, build: Build, batch: Callable[[], Any], **options: Any) -> None:
    RIGHT[name] = lambda: (attach(build(), verbose=False, **options), batch())


def x() -> Tensor:
    return torch.randn(N, 8)


def images(side: int = 32) -> Callable[[], Tensor]:
    return lambda: torch.randn(N, 3, side, side)


def tokens() -> Tensor:
    return torch.randn(N, 7, 8)


def words() -> Tensor:
    return torch.randint(0, 20, (N, 7))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, C), nn.ReLU(), nn.Linear(C, K))


def normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, C), nn.BatchNorm1d(C), nn.ReLU(), nn.Dropout(0.5), nn.Linear(C, K)
    )


class LastState(nn.Module):
    """An LSTM over (L, N, 8), and a classifier of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, C), nn.Linear(C, K)

    def forward(self, steps: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.lstm(steps)[0][-1])
        return logits


# attach, with each of its options.

attached("mlp", mlp, x)
attached("batch norm and dropout", normed, x)
attached("two layers", mlp, x, layers=2)
attached("one head", mlp, x, heads=1)
attached("no dropout", mlp, x, dropout=0.0)
attached("much dropout", mlp, x, dropout=0.9)
attached("the control", mlp, x, attend="self")
attached("mixed only", normed, x, streams="mixed_only")
attached("exchange", mlp, x, exchange=True)
attached("a hidden layer", lambda: nn.Sequential(*mlp()[:2], nn.Linear(C, C), mlp()[2]), x, at="2")
attached(
    "several places",
    lambda: nn.Sequential(nn.Linear(8, C), nn.Linear(C, C), nn.ReLU(), nn.Linear(C, K)),
    x,
    at=["1", "3"],
)
attached(
    "several places, one module",
    lambda: nn.Sequential(nn.Linear(8, C), nn.Linear(C, C), nn.ReLU(), nn.Linear(C, K)),
    x,
    at=["1", "3"],
    share=True,
)
for how in ("joint", "per_stream"):
    attached(
        f"{how} batch norm after the place",
        lambda: nn.Sequential(nn.Linear(8, C), nn.Linear(C, C), nn.BatchNorm1d(C), nn.Linear(C, K)),
        x,
        at="1",
        batch_norm=how,
    )
attached("a batch of two", mlp, lambda: torch.randn(2, 8))
attached("a batch of three", normed, lambda: torch.randn(3, 8))
attached("a large batch with copies", mlp, lambda: torch.randn(3, 8).repeat_interleave(50, 0))
attached("bfloat16", lambda: mlp().bfloat16(), lambda: x().bfloat16())
attached("float64", lambda: mlp().double(), lambda: x().double())


def scaled(factor: float) -> nn.Sequential:
    model = mlp()
    with torch.no_grad():
        model[2].weight.mul_(factor)
    return model


attached("zero classifier", lambda: scaled(0.0), x)
attached("young classifier", lambda: scaled(1e-3), x)
attached("loud classifier", lambda: scaled(1e3), x)


@right
def in_eval() -> nn.Module:
    return attach(normed(), verbose=False).eval()


@right
def only_the_head_is_in_training() -> nn.Module:
    model = attach(normed(), verbose=False).eval()
    model[-1].train()
    return model


@right
def frozen_backbone() -> Any:
    model = normed()
    model[:-1].requires_grad_(False)
    attach(model, verbose=False)
    return model, x(), {"optimizer": torch.optim.SGD(param_groups(model, 0.1))}


def embeddings(norm: nn.Module) -> Build:
    return lambda: nn.Sequential(norm, nn.Linear(256, K))


def of_length_one() -> Tensor:
    return F.normalize(torch.randn(N, 256), dim=1)


attached("embeddings of size one", embeddings(nn.Identity()), lambda: 16 * of_length_one())
attached("embeddings of length one, scaled", embeddings(nn.Identity()), of_length_one, scale=1 / 16)
attached("embeddings and a norm", embeddings(nn.LayerNorm(256)), of_length_one)
attached("small features of a trained layer", mlp, lambda: x() / 1000)


@right
def small_features_of_a_guessed_batch() -> Any:
    model = attach(mlp(), verbose=False)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False).mul_(0.02)
    return model, None, {}


@right
def a_guessed_sequence_first() -> Any:
    return attach(LastState(), verbose=False), None, {}


@right
def with_labels_and_optimizer() -> Any:
    model = attach(mlp(), verbose=False)
    optimizer = torch.optim.SGD(param_groups(model, 0.1))
    return model, (x(), torch.zeros(N).long()), {"optimizer": optimizer}


@right
def an_average_of_weights() -> nn.Module:
    return AveragedModel(attach(normed(), verbose=False))


@right
def compiled() -> Any:
    return torch.compile(attach(mlp(), verbose=False))


@right
def compiled_in_place() -> nn.Module:
    model = attach(mlp(), verbose=False)
    model.compile()
    return model


@right
def trained_for_a_while() -> Any:
    model, batch = attach(normed(), verbose=False), x()
    optimizer = torch.optim.SGD(param_groups(model, 0.1, weight_decay=5e-4), momentum=0.9)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(model(batch), torch.arange(2 * N) % K).backward()
        optimizer.step()
    return model, batch, {"optimizer": optimizer}


# Families by hand.


class Lstm(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.rnn = nn.LSTM(6, C, 2, batch_first=batch_first, dropout=0.2)
        self.head = nn.Linear(C, K)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.words(ids))[1][0][-1])


class Tied(nn.Module):
    """The classifier has the weights of the words, and no other layer follows the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(20, C), nn.Linear(C, C)
        self.head = nn.Linear(C, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.words(ids)).relu().mean(1))


class AttentionPool(nn.Module):
    """As SigLIP: one query for each sample reads its tokens, so no query can reach another."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, 8))
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, K)

    def forward(self, f: Tensor) -> Tensor:
        return self.head(self.attention(self.query.expand(len(f), 1, 8), f, f)[0][:, 0])


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(K, C))

    def forward(self, f: Tensor) -> Tensor:
        return 9.0 * F.linear(F.normalize(f), F.normalize(self.weight))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, C), nn.Linear(C, K)

    def forward(self, f: Tensor) -> Tensor:
        return self.head(self.body(f).relu())


class Residual(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm

    def forward(self, f: Tensor) -> Tensor:
        return f + self.norm(self.conv(f)).relu()


def cnn(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 8, 3, 2),
            one=Residual(norm(8)),
            two=Residual(norm(8)),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(8, K),
        )
    )


def segmenter() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, K, 1), nn.Upsample(16))


attached("lstm", Lstm, words)
attached(
    "lstm, sequence first",
    lambda: Lstm(batch_first=False),
    lambda: words().T.contiguous(),
    example=torch.randint(0, 20, (7, 3)),
    input_axis=1,
)
attached(
    "1-d convolutions",
    lambda: nn.Sequential(
        nn.Conv1d(7, C, 3), nn.BatchNorm1d(C), nn.AdaptiveAvgPool1d(1), nn.Flatten(), mlp()[2]
    ),
    tokens,
)
attached("pooling by attention", AttentionPool, tokens, example=torch.randn(3, 7, 8))
attached("tied weights", Tied, words)
attached("cosine classifier", lambda: nn.Sequential(nn.Linear(8, C), nn.ReLU(), Cosine()), x)
attached(
    "weight norm",
    lambda: nn.Sequential(nn.Linear(8, C), nn.utils.parametrizations.weight_norm(nn.Linear(C, K))),
    x,
)
attached("tokens", Tagger, tokens, example=torch.randn(3, 7, 8))
attached("cnn", cnn, images())
attached("cnn with group norm", lambda: cnn(lambda width: nn.GroupNorm(2, width)), images())
attached("cnn with instance norm", lambda: cnn(nn.InstanceNorm2d), images())
attached(
    "norms without running statistics",
    lambda: cnn(lambda width: nn.BatchNorm2d(width, track_running_stats=False)),
    images(),
)
attached("inside a cnn", cnn, images(), at="two", batch_norm="per_stream")
attached("segmentation", segmenter, images(16), example=torch.randn(3, 3, 16, 16))

# Libraries.


def small_resnet() -> tv.ResNet:
    return tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=K)


def from_timm(name: str, **options: Any) -> Build:
    return lambda: timm.create_model(name, num_classes=K, **options)


VIT = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 2}
attached(
    "timm vit with stochastic depth",
    from_timm("vit_tiny_patch16_224", **VIT, drop_path_rate=0.5, proj_drop_rate=0.2),
    images(),
)
attached(
    "timm vit, inside", from_timm("vit_tiny_patch16_224", **VIT), images(), at=["blocks.0", "head"]
)
attached("timm mobilenet", from_timm("mobilenetv3_small_050", drop_rate=0.2), images())
attached("torchvision resnet, inside", small_resnet, images(), at="layer4")
attached(
    "torchvision swin with stochastic depth",
    lambda: tv.SwinTransformer(
        [4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=K, stochastic_depth_prob=0.4
    ),
    images(),
)
attached(
    "torchvision shufflenet",
    lambda: tv.ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, 64], num_classes=K),
    images(),
)


def text() -> dict[str, Tensor]:
    ids = torch.randint(2, 50, (N, 7))
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(N).long()}


RIGHT["random slopes"] = lambda: (
    attach(nn.Sequential(nn.Linear(8, 16), nn.RReLU(), nn.Linear(16, 3)), verbose=False),
    torch.randn(6, 8),
)


# One's own code.


class ByHand(Mixing):
    """Two streams in training, from what makes mixed rows, and one in eval."""

    body_norm = nn.BatchNorm1d


class Own(ByHand):
    """A backbone, our module and one classifier."""

    def __init__(self, width: int = C, **options: Any) -> None:
        super().__init__()
        self.batchformer = BatchFormer(width, **options)

    def forward(self, batch: Tensor) -> Any:
        return self.rows(self.body(batch))

    def rows(self, f: Tensor) -> Any:
        return self.head(two_streams(f, self.batchformer))


class Stock(mixing_models.Stock):
    """The six lines of the paper, with a stock layer."""

    body_norm = nn.BatchNorm1d


class StockGated(Gated):
    def __init__(self, gate: Tensor) -> None:
        super().__init__(gate)
        self.batchformer = nn.TransformerEncoderLayer(C, 4, C, 0.5)

    def mix(self, f: Tensor) -> Tensor:
        return f + self.gate * self.batchformer(f.unsqueeze(1)).squeeze(1)


def right_part(part: str, models: dict[str, tuple[Any, ...]]) -> None:
    """Enter models that are their class but for one method: class, method, further parts."""
    for name, (base, method, *parts) in models.items():
        RIGHT[name] = made(base, *parts, **{part: method})


def changed(model: nn.Module, change: Callable[[Any], object]) -> nn.Module:
    change(model)
    return model


def optimized(model: nn.Module) -> Any:
    return model, x(), {"optimizer": torch.optim.SGD(model.parameters(), 0.1)}


def noise_for_some(f: Tensor) -> Tensor:
    """Noise on the positive entries alone: how much is drawn depends on the samples."""
    some = f > 0
    return f.masked_scatter(some, f[some] + 0.1 * torch.randn(int(some.sum())))


def dropped(m: nn.Module, f: Tensor) -> Tensor:
    return F.dropout(f, 0.3, m.training)


def encoded(m: Any, f: Tensor) -> Tensor:
    return two_streams(f, m.batchformer)


def attention_by_hand(m: Any, f: Tensor) -> Tensor:
    q, k, v = m.qkv(f).chunk(3, -1)
    return m.norm(f + (q @ k.T / C**0.5).softmax(-1) @ v)


def multihead_by_hand(m: Any, f: Tensor) -> Tensor:
    s = f.unsqueeze(1)
    return f + m.batchformer(s, s, s)[0].squeeze(1)


@dataclass
class Answer:
    logits: Tensor
    features: Tensor
    name: str = "answer"


def much_beside_the_logits(m: Any, f: Tensor) -> dict[str, Tensor]:
    """Similarities of all pairs, doubled soft targets, probabilities and mixed features."""
    streams = encoded(m, f)
    logits = m.head(streams)
    return {
        "similarities": f @ f.T,
        "targets": torch.full((len(streams), K), 1 / K),
        "probabilities": (1e4 * logits).softmax(1),
        "mixed": streams[len(f) :] if m.training else f,
        "hidden_states": f - f.mean(0),
        "logits": logits,
    }


def plain_and_mixed_of_two_heads(m: Any, f: Tensor) -> Any:
    """Five outputs, four of which have the same shape."""
    mixed, plain = m.batchformer(f), (m.head2(f), m.head(f))
    return (*plain, m.head(mixed), m.head2(mixed), f) if m.training else plain


def several_heads(m: Any, f: Tensor) -> dict[str, Tensor]:
    f = encoded(m, f)
    return {"one": m.head(f), "two": m.other(f)}


def stacked_experts(m: Any, f: Tensor) -> Tensor:  # (3, 2N, K) in training
    f = encoded(m, f)
    return torch.stack([expert(f) for expert in m.experts])


def a_dataclass(m: Any, f: Tensor) -> Answer:
    f = encoded(m, f)
    return Answer(m.head(f), f)


def its_loss_too(m: Any, f: Tensor) -> dict[str, Tensor]:
    logits = Own.rows(m, f)
    return {"loss": logits.square().mean(), "logits": logits}


def tokens_in_training_alone(m: Any, f: Tensor) -> Any:
    """An auxiliary head attends over the tokens of each sample, and is left out in eval."""
    logits = Own.rows(m, f)
    if not m.training:
        return logits
    return logits, m.attributes(m.tokens(f.unflatten(1, (4, 4))).flatten(1))


def gate_of_zero_in_one_output(m: Any, f: Tensor) -> tuple[Tensor, Tensor]:
    if not m.training:
        return m.head(f), m.head2(f)
    mixed = m.batchformer(f)
    return m.out(f, mixed), m.head2(torch.cat([f, f + m.gate * mixed]))


right_part(
    "rows",
    {
        "our module in its own code": (Own, Own.rows),
        "large features": (Own, lambda m, f: Own.rows(m, 3e4 * f)),
        "probabilities": (Own, lambda m, f: Own.rows(m, f).softmax(-1)),
        "probabilities at test": (
            Own,
            lambda m, f: Own.rows(m, f) if m.training else (Own.rows(m, f) / 2).softmax(-1),
        ),
        "functional dropout": (Own, lambda m, f: m.head(dropped(m, encoded(m, dropped(m, f))))),
        "noise for some entries": (
            Own,
            lambda m, f: Own.rows(m, noise_for_some(f) if m.training else f),
        ),
        "stock, noise": (Stock, lambda m, f: Stock.rows(m, noise_for_some(f))),
        "correction of logits in training": (  # eval need not give the same numbers
            Own,
            lambda m, f: Own.rows(m, f) + m.correction if m.training else m.head(f),
            lambda: {"correction": nn.Parameter(torch.randn(K))},
        ),
        "encoder in a reentrant checkpoint": (  # no gradient can be asked for: not judged
            ByHand,
            lambda m, f: m.head(checkpoint(two_streams, f, m.batchformer, use_reentrant=True)),
        ),
        # Several outputs.
        "two outputs": (ByHand, lambda m, f: (m.head(f), m.head(m.mix(f)))),
        "streams stacked": (ByHand, lambda m, f: m.head(torch.stack([f, m.mix(f)]))),  # (2, N, K)
        "streams stacked last": (
            ByHand,
            lambda m, f: m.head(torch.stack([f, m.mix(f)])).movedim(0, -1),
        ),
        "a dataclass": (Own, a_dataclass),
        "its loss too": (Own, its_loss_too),
        "several heads": (
            Own,
            several_heads,
            lambda: {"other": nn.Sequential(nn.Linear(C, C), nn.BatchNorm1d(C), nn.Linear(C, 2))},
        ),
        "auxiliary head on plain rows": (
            Own,
            lambda m, f: {"main": m.head(encoded(m, f)), "aux": m.attributes(f)},
        ),
        "plain and mixed of two heads": (Own, plain_and_mixed_of_two_heads),
        "experts stacked in its own code": (
            Own,
            stacked_experts,
            lambda: {"experts": nn.ModuleList(nn.Linear(C, K) for _ in range(3))},
        ),
        "much beside its logits": (Own, much_beside_the_logits),
        "tokens in training alone": (
            Own,
            tokens_in_training_alone,
            lambda: {"tokens": nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)},
        ),
        "gate of zero in one output": (
            Own,
            gate_of_zero_in_one_output,
            lambda: {"gate": nn.Parameter(torch.zeros(C))},
        ),
    },
)
right_part(
    "forward",
    {
        "frozen features": (Own, lambda m, batch: m.rows(torch.no_grad()(m.body)(batch))),
        "checkpointed": (
            Own,
            lambda m, batch: m.rows(checkpoint(m.body, batch, use_reentrant=False)),
        ),
        "reentrant checkpoint": (
            Own,
            lambda m, batch: m.rows(checkpoint(m.body, batch.requires_grad_(), use_reentrant=True)),
        ),
        "average of weights at test": (
            Own,
            lambda m, batch: Own.forward(m, batch) if m.training else m.average(batch),
            lambda: {"average": mlp()},
        ),
    },
)
right_part(
    "mix",
    {
        "by hand": (ByHand, ByHand.mix),
        "stock": (Stock, Stock.mix),
        "with residual": (ByHand, lambda m, f: f + m.batchformer(f)),
        "mix called directly": (ByHand, lambda m, f: m.batchformer.mix(f)),
        "functional": (
            ByHand,
            lambda m, f: batch_former(f, [EncoderWeights.of(m.batchformer.layers[0])]),
        ),
        "through a bottleneck": (
            ByHand,
            lambda m, f: f + m.up(m.batchformer(m.down(f))),
            lambda: {"batchformer": BatchFormer(8), "down": nn.Linear(C, 8), "up": nn.Linear(8, C)},
        ),
        "attention by hand": (ByHand, attention_by_hand, lambda: {"batchformer": None}),
        "multi-head attention by hand": (
            ByHand,
            multihead_by_hand,
            lambda: {"batchformer": nn.MultiheadAttention(C, 4, dropout=0.5)},
        ),
        "stock, a stack": (
            Stock,
            Stock.mix,
            lambda: {
                "batchformer": nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(C, 4, C, 0.5, norm_first=True),
                    2,
                    enable_nested_tensor=False,
                )
            },
        ),
    },
)
Loud, MixedOnly = RIGHT["large features"], made(Own, rows=lambda m, f: m.head(m.batchformer(f)))
TakesAList = made(Own, forward=lambda m, samples: Own.forward(m, torch.stack(samples)))
Nested = made(Own, forward=lambda m, batch, more: Own.forward(m, batch + more["side"][0]))
Flattened = made(  # (N, 7, 8) to (2N * 7, K) in training
    Own,
    forward=lambda m, batch: m.rows(m.body(batch.flatten(0, 1)).unflatten(0, (-1, 7))).flatten(
        0, 1
    ),
)


class TeacherInEval(Own):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = Own().requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.teacher.eval()
        return self


class MovingAverage(Own):
    """Features are centred by an average of earlier batches, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(C))

    def rows(self, f: Tensor) -> Tensor:
        logits = super().rows(f - self.average)
        if self.training:
            self.average = 0.9 * self.average + 0.1 * f.detach().mean(0)
        return logits


class OwnGenerator(Own):
    """Noise from a generator of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def rows(self, f: Tensor) -> Tensor:
        if self.training:
            f = f + 0.1 * torch.randn(f.shape, generator=self.generator)
        return super().rows(f)


class CountsItsSteps(Own):
    """A queue of features with a place to write at, and a loss weight that follows a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.at, self.steps = torch.zeros(64, C), 0, 0

    def rows(self, f: Tensor) -> Tensor:
        logits = super().rows(f)
        if self.training:
            self.queue[self.at : self.at + len(f)] = f.detach()
            self.queue[self.at].abs_()  # raises far behind the end
            self.at, self.steps = (self.at + len(f)) % 64, self.steps + 1
            logits = logits * (1 + 0.5 ** (1 + self.steps))
        return logits


class SequenceFirst(nn.Module):
    """(L, N, 8) in, (L, N, K) out or its last step; with tokens, (N, L, 8) in and (N, L, K) out."""

    def __init__(self, last: bool = False, tokens: bool = False) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, C), nn.Linear(C, K)
        self.batchformer = BatchFormer(C, batch_axis=0 if last else 1)
        self.last, self.tokens = last, tokens

    def forward(self, batch: Tensor) -> Tensor:
        f = self.rnn(batch.transpose(0, 1) if self.tokens else batch)[0]
        out: Tensor = self.head(two_streams(f[-1] if self.last else f, self.batchformer))
        return out.transpose(0, 1) if self.tokens else out


def spectral(model: Any) -> None:
    """Every training pass updates the buffers u and v."""
    model.head = nn.utils.spectral_norm(model.head)


AXIS = {"input_axis": 1}
RIGHT |= {
    "mixed only on purpose": lambda: (MixedOnly(), x(), {"mixed_only": True}),
    "large features, the control": lambda: Loud(attend="self"),
    "one sample among many in low precision": lambda: (
        Own().bfloat16(),
        torch.randn(512, 8).bfloat16(),
    ),
    "a list of samples": lambda: (TakesAList(), list(x())),
    "nested arguments": lambda: (Nested(), {"batch": x(), "more": {"side": [x(), 1.0]}}),
    "rows of all tokens in one axis": lambda: (Flattened(), tokens()),
    "sequence first inside": lambda: (SequenceFirst(tokens=True), tokens()),
    "sequence first": lambda: (SequenceFirst(), tokens().transpose(0, 1), AXIS),
    "sequence first, last step": lambda: (SequenceFirst(last=True), tokens().transpose(0, 1), AXIS),
    "plain and mixed logits": made(
        ByHand,
        rows=lambda m, f: {"logits": m.head(f), "mixed_logits": m.head(m.mix(f))},
        at_test=lambda m, f: {"logits": m.head(f)},
    ),
    "one norm for each stream": made(
        ByHand,
        lambda: {"first": nn.BatchNorm1d(C), "second": nn.BatchNorm1d(C)},
        rows=lambda m, f: m.out(m.first(f), m.second(m.mix(f))),
        at_test=lambda m, f: m.head(m.first(f)),
    ),
    "a teacher in eval": TeacherInEval,
    "a moving average": MovingAverage,
    "a generator of its own": OwnGenerator,
    "counts its steps": CountsItsSteps,
    "two places": made(TwoPlaces, body_norm=nn.BatchNorm1d),
    "two places, one stock": made(
        TwoPlaces,
        place=lambda m: nn.TransformerEncoderLayer(C, 4, C, 0.5, batch_first=True),
        mix=lambda m, f: m.second(f.unsqueeze(0)).squeeze(0),
    ),
    # Deep, untrained networks: gradients say which rows mix the samples.
    "streams stacked after 20 layers": lambda: made(
        Deep, rows=lambda m, f: m.head(torch.stack([f, m.mix(f)]))
    )(20),
    "stock after 40 layers": lambda: Deep(40, nn.ReLU),
    "stock after 80 layers": lambda: Deep(80, nn.Tanh),
    # Gates that start at zero, or close to it.
    "gate of zero": lambda: Gated(torch.zeros(1)),
    "gate of zero for each channel": lambda: Gated(torch.zeros(C)),
    "gate of zero in the optimizer": lambda: optimized(Gated(torch.zeros(1))),
    "stock, gate of zero": lambda: StockGated(torch.zeros(())),
    "stock, layer scale": lambda: StockGated(torch.full((C,), 1e-6)),
    "larger layer scale": lambda: Gated(torch.full((C,), 1e-3)),
    "zero output projection": lambda: changed(
        attach(mlp(), verbose=False),
        lambda m: nn.init.zeros_(m[2].batchformer.layers[0].self_attn.out_proj.weight),
    ),
    "stock, zero output projection": lambda: changed(
        Stock(), lambda m: nn.init.zeros_(m.batchformer.self_attn.out_proj.weight)
    ),
    "stock, zero classifier": lambda: changed(Stock(), lambda m: nn.init.zeros_(m.head.weight)),
    "stock, spectral norm": lambda: changed(Stock(), spectral),
    "stock with its optimizer": lambda: optimized(Stock()),
}
attached("after 80 layers", lambda: deep(80, nn.Tanh).append(nn.Linear(C, K)), x)


class Tiny(nn.Module):
    def forward(self, batch: Tensor) -> Tensor:
        return 1 + 1e-12 * batch


attached("features that rounding makes equal", lambda: nn.Sequential(Tiny(), *mlp()), x)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, C)
        self.experts = nn.ModuleList(nn.Linear(C, K) for _ in range(3))

    def forward(self, batch: Tensor) -> Tensor:
        f = self.body(batch).relu()
        return torch.stack([expert(f) for expert in self.experts])


def bert() -> Any:
    given = {"output_hidden_states": True, "output_attentions": True}
    return tiny("BertForSequenceClassification", **given, attn_implementation="eager")


attached("stacked experts", Experts, x)
attached("bert with hidden states", bert, text)
attached(
    "spectral norm",
    lambda: nn.Sequential(
        nn.Linear(8, C), nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(C, K))
    ),
    x,
)
attached(
    "fake quantization, whose range is a batch statistic",
    lambda: nn.Sequential(nn.Linear(8, C), FakeQuantize(), nn.ReLU(), nn.Linear(C, K)),
    x,
)


@right
def first_step_of_a_warm_up() -> Any:
    """The rate is zero now and will not stay so: that is not judged."""
    model = attach(mlp(), verbose=False)
    optimizer = torch.optim.SGD(param_groups(model, 0.1))
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    return model, x(), {"optimizer": optimizer}


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_not_accused(name: str) -> None:
    torch.manual_seed(0)
    built = RIGHT[name]()
    model, batch, *rest = built if isinstance(built, tuple) else (built, x())
    result = check(model, batch, **(rest[0] if rest else {}))
    assert result and not result.failures, str(result)
    assert "BatchFormer is acting" in str(result) and "not proven" not in str(result)


class NoiseForSomeWords(Own):
    """No gradient reaches words, so that gradients cannot say who depends on whom."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, C)

    def forward(self, ids: Tensor) -> Tensor:
        f, some = self.words(ids), ids > 9
        if self.training:
            noise = torch.randn(int(some.sum()), C)
            f = f.masked_scatter(some.unsqueeze(-1), f[some] + 0.1 * noise)
        return self.rows(f.mean(1))


def uneven_words() -> Tensor:
    return torch.arange(7 * N).reshape(N, 7) % 20


@pytest.mark.parametrize(
    ("build", "batch", "words"),
    [
        (NoiseForSomeWords, uneven_words, "how many random numbers the model draws depends on"),
        (lambda: Deep(80, nn.Sigmoid), x, "all samples have almost the same outputs"),
        (
            lambda: attach(deep(80, nn.Sigmoid).append(nn.Linear(C, K)), verbose=False),
            x,
            "all samples have almost the same outputs",
        ),
    ],
)
def test_what_no_pass_and_no_gradient_shows_is_not_judged(
    build: Build, batch: Build, words: str
) -> None:
    torch.manual_seed(0)
    result = check(build(), batch())
    assert not result and not result.failures and "not proven" in str(result), str(result)
    (found,) = (finding for finding in result.findings if finding.question == ATTEND)
    assert found.passed is None and words in found.seen


OUTSIDE = torch.Generator()


class NoiseFromOutside(Own):
    """Noise from a generator that the model does not hold, so that nobody can find it."""

    def rows(self, f: Tensor) -> Tensor:
        return super().rows(f + 0.1 * torch.randn(f.shape, generator=OUTSIDE))


def test_what_cannot_be_judged_is_said_and_neither_passes_nor_fails() -> None:
    result = check(NoiseFromOutside(), x())
    assert not result and not result.passed and not result.failures  # not proven, not accused
    answers = {finding.question: finding.passed for finding in result.findings}
    assert answers[ATTEND] is None and answers[STAY] is None and answers[EVAL] is None
    assert answers[STREAMS] and answers[LEARN] and not result.failures
    assert "?     do samples attend to each other?    not judged: the outputs change" in str(result)
    assert "not proven" in str(result) and "BatchFormer is acting." not in str(result)
    result = check(RIGHT["encoder in a reentrant checkpoint"](), x())
    (unjudged,) = (finding for finding in result.findings if finding.passed is None)
    assert unjudged.question == LEARN and "use_reentrant=True" in unjudged.seen
    assert "BatchFormer is acting; 1 not judged." in str(result)


class AfterTheClassifier(Own):
    def __init__(self) -> None:
        super().__init__(K, heads=1)

    def rows(self, f: Tensor) -> Tensor:
        return two_streams(self.head(f), self.batchformer)


class StockAfterTheClassifier(Own):
    def __init__(self) -> None:
        super().__init__()
        self.batchformer = nn.TransformerEncoderLayer(K, 1, K, 0.5)

    def rows(self, f: Tensor) -> Tensor:
        z = self.head(f)
        return torch.cat([z, self.batchformer(z[:, None]).squeeze(1)]) if self.training else z


@pytest.mark.parametrize("build", [AfterTheClassifier, StockAfterTheClassifier])
def test_an_encoder_with_nothing_behind_it_is_told_in_words(build: Build) -> None:
    """The classifier may be in the loss, so nothing failed; but it is not called acting either."""
    torch.manual_seed(0)
    result = check(build(), x())
    (unjudged,) = (finding for finding in result.findings if finding.passed is None)
    assert unjudged.question == SHARED and "stands after the classifier" in unjudged.seen
    assert not result.failures and "acting" not in str(result)


def test_sequence_first_inputs_are_asked_for() -> None:
    model, batch, _ = RIGHT["sequence first, last step"]()
    result = check(model, batch)
    assert result.failures and "input_axis=1" in str(result)


@pytest.mark.parametrize(("start", "words"), [(0.0, "is zero"), (1e-6, "is nearly zero")])
def test_a_gate_that_starts_closed_is_said_and_left_as_it_was(start: float, words: str) -> None:
    model = StockGated(torch.full((C,), start))
    result = check(model, x())
    assert result and f"(gate {words}: it begins after the first step)" in str(result)
    assert (model.gate == start).all()


def test_a_rate_that_is_zero_now_is_said_and_not_judged() -> None:
    model, batch, options = first_step_of_a_warm_up()
    result = check(model, batch, **options)
    assert result and [f.question for f in result.findings if f.passed is None] == [MEMBER]
    assert "12 of 12 parameters, 12 of them at a rate of 0 now (a warm-up?)" in str(result)
    # The encoder's rate alone is zero, for the first steps of its own schedule.
    optimizer = torch.optim.SGD(param_groups(model, 0.1))
    later = [lambda step: 1.0, lambda step: float(step > 5)]
    torch.optim.lr_scheduler.LambdaLR(optimizer, later[-len(optimizer.param_groups) :])
    assert {group["lr"] for group in optimizer.param_groups} == {0.0, 0.1}
    (found,) = (f for f in check(model, batch, optimizer).findings if f.question == MEMBER)
    assert found.passed is None


def test_the_readme_counts_them() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    assert f"{len(RIGHT)} right ones" in readme.read_text(encoding="utf-8")
