"""What modules read beside the features: found by passes, doubled in training, nothing else."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer import attach, check, detach, duplicate, export, split
from batchformer.plug.example import Batch
from batchformer.plug.insertion import DoublesSideInputs
from batchformer.plug.side_inputs import FEATURES, PaddingMask, SideInputs, row_axes

N, C = 3, 8


class Block(nn.Module):
    """Adds an encoding (N, C), of the level that a table (levels, C) says is the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(C, C)

    def forward(
        self,
        x: Tensor,
        table: Tensor,
        *,
        beside: dict[str, list[Tensor]],
        mask: Tensor | None = None,
    ) -> Tensor:
        x = self.linear(x + beside["encodings"][0] + table[0])
        return x if mask is None else x * mask


class Levels(nn.Module):
    """As many levels in the table as samples in the example; the table is not to be doubled."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(N, C))
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(C, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        beside = {"encodings": [x.cos()]}
        for block in self.blocks:
            x = block(x, self.table, beside=beside, mask=mask)
        return self.head(x)


def by_hand(model: Levels, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Both streams, block by block, with N rows each."""
    beside = {"encodings": [x.cos()]}
    plain = mixed = x
    for number, block in enumerate(model.blocks):
        if number == 1:
            mixed = block.batchformer(plain)
        rows = []
        for part in (plain, mixed):
            rows.append(block.linear(part + beside["encodings"][0] + model.table[0]))
            rows[-1] = rows[-1] if mask is None else rows[-1] * mask
        plain, mixed = rows
    return torch.cat((model.head(plain), model.head(mixed)))


def test_levels_are_not_taken_for_samples_and_masks_that_come_later_are_doubled() -> None:
    model = attach(Levels(), at="blocks.1", example=torch.randn(N, C), dropout=0.0, verbose=False)
    doubling = [n for n, m in model.named_modules() if isinstance(m, DoublesSideInputs)]
    assert doubling == ["blocks.1", "blocks.2"]
    for rows in (N, N + 2):  # with as many samples as levels, and with others
        x = torch.randn(rows, C)
        torch.testing.assert_close(model(x).as_subclass(Tensor), by_hand(model, x))
        mask = (torch.rand(rows, 1) > 0.5).float()  # the example had none
        torch.testing.assert_close(model(x, mask).as_subclass(Tensor), by_hand(model, x, mask))
    result = check(model, torch.randn(5, C))
    assert result, str(result)


def test_copies_files_and_graphs_double_too_and_nothing_is_left_after_detach() -> None:
    model = attach(Levels(), at="blocks.1", example=torch.randn(N, C), dropout=0.0, verbose=False)
    x = torch.randn(N, C)
    expected = model(x).as_subclass(Tensor)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x).as_subclass(Tensor), expected)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x).as_subclass(Tensor), expected)
    detach(model)
    assert all(type(block) is Block for block in model.blocks)
    assert not any({"_sides", "_doubled_by"} & vars(block).keys() for block in model.blocks)


class Padded(nn.Module):
    """Torch's encoder inside: features (L, N, C), masks of padding (N, L) and of order (L, L)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, 2, C, 0.0)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(C, 2)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        order = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
        x = self.encoder(x.transpose(0, 1), mask=order, src_key_padding_mask=padding)
        return self.head(x[0])


def test_each_argument_is_doubled_along_its_own_axis_of_samples() -> None:
    model, length = Padded().double(), 4
    x, padding = torch.randn(N, length, C).double(), torch.zeros(N, length, dtype=torch.bool)
    padding[1, 2:] = True
    axes = row_axes(model, Batch((x, padding), {}, N))[model.encoder.layers[1]]
    assert {path: axis for path, axis in axes.items() if axis is not None} == {
        FEATURES: 1,
        "[1]['src_key_padding_mask']": 0,
    }
    options = {"mask": "src_key_padding_mask", "dropout": 0.0, "verbose": False}
    attach(model, at="encoder.layers.1", example=(x, padding), **options)
    encoder = model.encoder.layers[1].batchformer
    stock = nn.TransformerEncoderLayer(C, 4, C, 0.0).double()
    stock.load_state_dict(encoder.layers[0].state_dict())
    result = check(model, (x, padding))
    assert result, str(result)
    outputs = model(x, padding).as_subclass(Tensor)
    detach(model)
    plain = model.encoder.layers[0](x.transpose(0, 1), src_key_padding_mask=padding)
    mixed = stock(plain.transpose(0, 1), src_key_padding_mask=padding.T).transpose(0, 1)
    for stream, half in zip((plain, mixed), outputs.chunk(2), strict=True):
        for layer in model.encoder.layers[1:]:
            stream = layer(stream, src_key_padding_mask=padding)
        torch.testing.assert_close(half, model.head(stream[0]))


def test_what_a_mask_says() -> None:
    """1 or True is a real position; in a name with "padding" it is padding; scores add -inf."""
    real = torch.tensor([[True, True, False], [True, False, False]])
    scores = torch.zeros(2, 1, 3, 3).masked_fill(~real[:, None, None], -torch.inf)
    for name, mask in (
        ("attention_mask", real),
        ("attention_mask", real.long()),
        ("attention_mask", real.float()),
        ("attention_mask", real[:, None, None].expand(2, 1, 3, 3)),
        ("attention_mask", scores),
        ("src_key_padding_mask", ~real),
        ("padding_mask", scores[:, 0, 0]),
    ):
        by_keyword = PaddingMask(name, None).visible((), {name: mask}, 2, 0)
        by_position = PaddingMask(name, 1).visible((None, torch.cat((mask, mask))), {}, 2, 1)
        assert by_keyword is not None and torch.equal(by_keyword, real), name
        assert by_position is not None and torch.equal(by_position, real.T), name
    assert PaddingMask("attention_mask", 0).visible((None,), {}, 2, 0) is None
    with pytest.raises(TypeError, match="cannot read a tuple"):
        PaddingMask("attention_mask", 0).visible(((),), {}, 2, 0)


def test_a_module_that_meets_no_two_streams_doubles_nothing() -> None:
    """Called once more with N rows only, as a head for auxiliary outputs is."""
    sides = SideInputs((FEATURES, 0), 2, {"[1]['mask']": 0, "[1]['table']": None})
    mask, table = torch.ones(N, 1), torch.ones(N, 2)
    _, kwargs = sides.double((torch.randn(2 * N, C),), {"mask": mask, "table": table})
    assert len(kwargs["mask"]) == 2 * N and kwargs["table"] is table
    _, kwargs = sides.double((torch.randn(N, C),), {"mask": mask, "table": table})
    assert kwargs["mask"] is mask


def test_a_mask_that_attach_has_not_seen_is_explained() -> None:
    """Without encodings to double, nothing showed attach that this module reads more."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.block, self.head = nn.Linear(C, C), Scaled(), nn.Linear(C, 2)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return self.head(self.block(self.body(x), mask))

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(C, C)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x) if mask is None else super().forward(x) * mask

    x, mask = torch.randn(N, C), torch.ones(N, 1)
    model = attach(Masked(), at="block", verbose=False)
    assert len(model(x)) == 2 * N
    with pytest.raises(RuntimeError, match=r"others of 3 rows.*has not seen.*example="):
        model(x, mask)
    model = attach(Masked(), at="block", example=(x, mask), verbose=False)
    assert len(model(x, mask)) == len(model(x)) == 2 * N


class Nested(nn.Module):
    """torch's own encoder, which in eval reads nested tensors where samples are padded."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, 2, C, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(C, 2)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        tokens = self.encoder(x, src_key_padding_mask=padding)
        return self.head(tokens[:, 0])  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_the_mask_of_torchs_own_encoder_is_doubled_or_explained() -> None:
    x, padding = torch.randn(N, 5, C), torch.zeros(N, 5, dtype=torch.bool)
    padding[1, 3:] = True
    plain, unseen = Nested(), attach(Nested(), at="encoder.layers.1", verbose=False)
    with pytest.raises(RuntimeError, match=r"key_padd(?s:.*)others of 3 rows.*has not seen"):
        unseen(x, padding)
    options: Any = {"example": (x, padding), "mask": "src_key_padding_mask", "verbose": False}
    model = attach(copy.deepcopy(plain), at="encoder.layers.1", dropout=0.0, **options)
    outputs = model(x, padding)
    torch.testing.assert_close(split(outputs).plain, plain(x, padding))
    x[1, 3:] += 9.0  # what is in the padding changes nothing
    torch.testing.assert_close(model(x, padding), outputs)
    assert check(model, (x, padding))
    with torch.no_grad():
        assert torch.equal(export(model)(x, padding), model.eval()(x, padding))


class Margin(nn.Linear):
    """As ArcFace: in training, a margin is taken from the logit of each label."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = super().forward(x)
        if y is None:
            return logits
        return logits - torch.zeros_like(logits).scatter_(1, y[:, None], 9.0)


class WithMargin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(C, C), Margin(C, 2)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.body(x), y)
        return logits


def test_labels_that_attach_has_not_seen_cause_a_warning() -> None:
    """N labels for 2N rows are no error in scatter: the mixed rows would get no margin."""
    x, y = torch.randn(5, C), torch.zeros(5, dtype=torch.long)
    model = attach(WithMargin(), verbose=False)
    with pytest.warns(UserWarning, match=r"others of 5 rows.*has not seen.*example="):
        model(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x)
        model(x, duplicate(y))
        model.eval()(x, y)
        seen = attach(WithMargin(), at="head", example=(x, y), dropout=0.0, verbose=False)
        margins = (seen(x) - seen(x, y))[:, 0]
    torch.testing.assert_close(margins, torch.full((10,), 9.0))
