"""check tells the good from the broken, and leaves no trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer import BatchFormer, attach, check, export, match, two_streams
from batchformer.plug.alive import influence
from batchformer.plug.findings import EQUAL, OWN, CheckResult
from batchformer.plug.noise import drops_everything
from helpers.mixing_models import Deep, Gated, Mixing, Stock, TwoPlaces, made

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16)
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))


def failed(result: CheckResult) -> list[str]:
    return [finding.question for finding in result.failures]


def snapshot(model: nn.Module) -> tuple[Any, ...]:
    return (
        copy.deepcopy(model.state_dict()),
        [m.training for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        torch.get_rng_state(),
        [getattr(m, "dropout", None) for m in model.modules() if isinstance(m, BatchFormer)],
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("training", [True, False])
def test_a_good_model_passes_and_is_left_as_it_was(training: bool) -> None:
    model = attach(Backbone(), verbose=False).train(training)
    model(X).sum().backward()
    model.body[1].eval()
    before = snapshot(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = check(model, (X, torch.zeros(6)), optimizer)
    assert result.passed and bool(result) and len(result.findings) == 13
    assert "BatchFormer is acting." in str(result)
    assert same(before, snapshot(model))
    assert not any(m._forward_hooks for m in model.modules())
    assert influence(model, (X, torch.zeros(6))) == result.influence
    assert same(before, snapshot(model))


class OwnCode(Backbone):
    """The model calls the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = BatchFormer(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(two_streams(self.body(x), self.encoder))


def test_a_zero_that_no_pass_uses_does_not_hide_its_influence() -> None:
    model = attach(Backbone(), verbose=False)
    model.mask_token = nn.Parameter(torch.zeros(1, 8))  # as DINOv2's, for pretraining alone
    result = check(model, torch.randn(4, 8))
    assert result.influence and "mask_token" not in str(result), str(result)


class Shifted(Backbone):
    """A weight that starts at zero acts on every pass, as BEiT's class token does."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.token)


def test_a_zero_that_acts_does_not_hide_whether_the_encoder_is_alive() -> None:
    torch.manual_seed(0)
    model = attach(Shifted(), verbose=False)
    result = check(model, X)
    assert result.influence and result.influence == influence(model, X)
    assert all(finding.passed for finding in result.findings), str(result)
    for parameter in model.head.batchformer.parameters():
        parameter.data.mul_(0.01)
    assert "is the encoder still alive?" in failed(check(model, X))


def test_a_classifier_of_zeros_hides_it() -> None:
    model = Shifted()
    nn.init.zeros_(model.head.weight)
    result = check(attach(model, verbose=False), X)
    assert result.passed and result.influence is None
    assert "head.weight is zero" in str(result)


def test_controls_and_ablations_are_recognised() -> None:
    result = check(attach(Backbone(), attend="self", verbose=False), X)
    assert result.passed and "acting as the control: samples attend only to them" in str(result)
    result = check(attach(Backbone(), streams="mixed_only", verbose=False), X)
    assert result.passed and "as asked" in str(result)


class Bypassed(Backbone):
    """As LR-ASPP before training: features from before the place outweigh those after it."""

    def forward(self, x: Tensor) -> Any:
        low = self.body(x)
        high = self.head(low)
        return match(high, low[:, :3]) + 1e-4 * high


def test_a_network_that_hardly_uses_the_place_is_not_accused_of_a_constant() -> None:
    torch.manual_seed(0)
    result = check(attach(Bypassed(), at="head", verbose=False), X)
    assert not failed(result), str(result)
    assert not result and "paths around the place outweigh it" in str(result)


@pytest.mark.parametrize(
    ("batch", "needs"),
    [(X[:1], "at least 2 samples"), (X[:1].expand(4, 8), "samples that differ")],
)
def test_batches_that_cannot_show_anything_are_refused(batch: Tensor, needs: str) -> None:
    with pytest.raises(ValueError, match=rf"check\(\) needs {needs}"):
        check(attach(Backbone(), verbose=False), batch)


class Scaled(Backbone):
    """Takes what cannot be guessed: two tensors that fit together."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(self.body(x) * scale[:, None])


def test_without_a_batch_it_takes_the_example_of_attach_or_guesses_one() -> None:
    assert check(attach(Backbone(), verbose=False)).passed
    assert check(OwnCode()).passed
    model = attach(Scaled(), example=(X, X[:, 0]), verbose=False)
    assert check(model).passed
    with pytest.raises(ValueError, match=r"none could be guessed for Scaled.*check\(model, x\)"):
        check(copy.deepcopy(model))
    with pytest.raises(ValueError, match="none could be guessed"):
        check(attach(Backbone(), verbose=False), input_axis=1)


def test_whatever_gradient_mode_it_is_called_in() -> None:
    model = attach(Backbone(), verbose=False)
    with torch.no_grad():
        result = check(model, X)
    assert result.passed and result.influence, str(result)
    with torch.inference_mode():
        result = check(model, X.clone())
    assert result.passed and result.influence, str(result)


def test_a_norm_over_two_channels_is_not_taken_for_pooling() -> None:
    """It leaves a sign of each row, and all may have the same; the encoder is not pooled."""
    for number in range(8):
        torch.manual_seed(number)
        model = nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 3))
        assert OWN not in failed(check(attach(model, heads=1, verbose=False), X))


def test_a_few_samples_and_passes_are_enough() -> None:
    """Time is spent in the backbone: 17 samples, where all took hundreds."""
    model, rows = attach(Backbone(), verbose=False), list[int]()
    model.body[0].register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    assert check(model, torch.randn(64, 8))
    # Batch statistics, eval, one sample in eval, the batch, and that with a sample replaced. All
    # other passes use what the backbone has computed in these two.
    assert rows == [4, 4, 1, 4, 4]


def test_large_images_are_tried_at_half_the_resolution_where_the_model_accepts_that() -> None:
    sides: list[int] = []
    body = nn.Conv2d(3, 8, 3, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    fixed = nn.Conv2d(3, 8, 3, 16), nn.Flatten(), nn.Linear(8 * 64, 3)
    for layers, side in ((body, 64), (fixed, 128)):
        model = attach(nn.Sequential(*layers), verbose=False, example=torch.randn(2, 3, 128, 128))
        model[0].register_forward_hook(lambda module, args, out: sides.append(args[0].shape[-1]))
        assert check(model, torch.randn(4, 3, 128, 128))
        assert sides[-1] == side


class AuxiliaryHead(nn.Module):
    """As Inception: a head that is called in training alone, and needs a larger image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, 16), nn.Linear(8, 3)
        self.aux = nn.Conv2d(8, 3, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.stem(x).relu()
        out = {"out": self.head(features.mean((2, 3)))}
        return out | {"aux": self.aux(features)} if self.training else out


@pytest.mark.parametrize("batch", [None, torch.randn(4, 3, 128, 128)])
def test_images_are_large_enough_for_training_too(batch: Tensor | None) -> None:
    model = attach(AuxiliaryHead(), verbose=False)
    assert check(model, batch)


def test_nothing_is_made_on_the_default_device() -> None:
    """The models are on the CPU. ``torch.set_default_device("cuda")`` would do the same."""
    model, others = Backbone(), (Deep(40), Gated(torch.zeros(1)), TwoPlaces())
    model.body[1] = nn.BatchNorm1d(16, track_running_stats=False)
    with torch.device("meta"):
        attach(model, verbose=False)
        assert check(model) and check(model, X).influence == influence(model, X)
        assert type(export(model)) is Backbone
        for other in others:
            result = check(other, X)
            assert result, str(result)


class NoisyFeatures(nn.Dropout):
    """Noise with a probability, as MixStyle is: nothing is dropped."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


def test_noise_of_probability_one_is_not_taken_for_dropping_everything() -> None:
    assert drops_everything(nn.Dropout(1.0)) and not drops_everything(NoisyFeatures(1.0))
    layers = nn.Linear(4, 8), NoisyFeatures(1.0), nn.Linear(8, 3)
    assert check(attach(nn.Sequential(*layers), verbose=False), torch.randn(6, 4))


def test_weights_that_no_gradient_sets_apart_are_not_judged() -> None:
    class Centred(Backbone):
        def forward(self, x: Tensor) -> Any:
            f = self.body(x)
            return self.head(f - f.mean(0) if self.training else f)

    result = check(Centred(), X, mixed_only=True)
    assert "the encoder's weights cannot be told from the others" in str(result)


class OfLayout(nn.Linear):
    """As with some kernels, last bits depend on the strides of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if x.is_contiguous() else 1.0 + 2**-20)


def test_eval_is_compared_on_inputs_of_the_same_strides() -> None:
    model = Backbone()
    model.body = nn.Sequential(nn.Linear(8, 32), nn.Unflatten(1, (2, 16)), First())
    model.head = OfLayout(16, 3)
    result = check(attach(model, verbose=False), X)
    assert result, str(result)


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class OfTheLongest(nn.Module):
    """A tagger whose outputs are as long as the longest sample of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(states)  # type: ignore[no-any-return]


def test_outputs_as_long_as_the_longest_sample_need_equal_lengths() -> None:
    x, ragged, equal = torch.randn(4, 7, 8), torch.tensor([7, 3, 5, 2]), torch.full((4,), 7)
    model = attach(OfTheLongest(), example=(x, ragged), verbose=False)
    with pytest.raises(ValueError, match="pass samples of equal lengths"):
        check(model, (x, ragged))
    assert check(model, (x, equal))


class StockLayer(Backbone):
    """A stock layer in place of BatchFormer. Samples may attend to a memory, too."""

    def __init__(self, memory: int = 0, detached: bool = False) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 4, 16)
        self.register_buffer("memory", torch.randn(memory, 16))
        self.detached = detached

    def forward(self, x: Tensor) -> Any:
        f = self.body(x)
        if self.training:
            mixed = self.encoder(torch.cat((f, self.memory)).unsqueeze(1)).squeeze(1)[: len(f)]
            f = torch.cat((f.detach() if self.detached else f, mixed))
        return self.head(f)


def test_attention_to_a_memory_beside_the_samples_is_not_taken_for_groups() -> None:
    torch.manual_seed(0)
    result = check(StockLayer(memory=32), X)
    assert result, str(result)


def test_detached_plain_rows_are_not_taken_for_an_encoder_in_eval() -> None:
    torch.manual_seed(0)
    (failure,) = check(StockLayer(detached=True), X).failures
    assert failure.seen.startswith("body.") and "gradient from mixed rows alone" in failure.seen
    assert "do not detach them" in failure.remedy


def test_mixed_rows_that_eval_cuts_off_are_not_taken_for_an_encoder_in_eval() -> None:
    torch.manual_seed(0)
    result = check(made(Stock, at_test=lambda m, f: m.rows(f)[: len(f)])(), X)
    assert result, str(result)


class OfPrototypes(nn.Module):
    """Compares features with a table that has a row for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, table: Tensor) -> Any:
        return self.head(self.body(x).relu()) @ table.T


class OfOneGraph(OfPrototypes):
    """The same graph of six nodes in all samples, as of sensors at fixed places."""

    def forward(self, x: Tensor, table: Tensor) -> Any:
        return self.head((table @ self.body(x)).view(len(x), 6, 16).sum(1))


class OfNodes(OfPrototypes):
    """The samples are the nodes of a graph."""

    def forward(self, x: Tensor, table: Tensor) -> Any:
        return self.head(table @ self.body(x))


@pytest.mark.parametrize("n", [6, 7])
def test_a_table_with_as_many_rows_as_samples_is_no_batch(n: int) -> None:
    prototypes = (torch.randn(n, 8), torch.randn(6, 3))
    nodes = (torch.randn(n, 6, 8), torch.rand(6, 6))
    for kind, batch in ((OfPrototypes, prototypes), (OfOneGraph, nodes)):
        result = check(attach(kind(), at="head", example=batch, verbose=False), batch)
        assert result, str(result)


def test_nodes_of_a_graph_cannot_be_taken_apart_but_the_head_can_be_checked() -> None:
    batch = (X, torch.rand(6, 6))
    model = attach(OfNodes(), example=batch, verbose=False)
    with pytest.raises(ValueError, match=r"batch of 6, but not 4 of its samples.*model\.head"):
        check(model, batch)
    assert check(model.head, torch.randn(6, 16))


class InInferenceMode(Backbone):
    """The frozen backbone runs in inference mode, whose tensors do not count their changes."""

    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode():
            features = self.body(x)
        return self.head(features.clone())


def test_a_backbone_in_inference_mode_is_checked() -> None:
    result = check(attach(InInferenceMode(), verbose=False), X)
    assert result, str(result)


class ReadsAsManyRowsOfAMask(OfPrototypes):
    """As models of Hugging Face do: a mask with more rows than samples is no error."""

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.head(self.body(x * mask[torch.arange(len(x))]).relu())


def test_an_attention_mask_is_replaced_with_its_sample() -> None:
    batch = X, (torch.rand(6, 8, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    result = check(attach(ReadsAsManyRowsOfAMask(), example=batch, verbose=False), batch)
    assert result and "not judged" not in str(result), str(result)


@pytest.mark.parametrize("otherwise", [lambda m, f: m.out(f, f), Mixing.at_test])
def test_an_encoder_that_random_steps_skip_is_found(otherwise: Any) -> None:
    def rows(m: Any, f: Tensor) -> Tensor:
        return (Mixing.rows if torch.rand(()) < 0.5 else otherwise)(m, f)

    result = check(made(Mixing, rows=rows)(), X)
    assert "random steps skip the encoder" in str(result), str(result)
    assert "mix the samples in every training step" in str(result)


def test_why_equal_samples_were_not_compared_is_true() -> None:
    reverse = made(Mixing, rows=lambda m, f: m.out(f, m.mix(f).flip(0)))
    (unjudged,) = (f for f in check(reverse(), X).findings if f.passed is None)
    assert unjudged.question == EQUAL and "not in the order of samples" in unjudged.seen
