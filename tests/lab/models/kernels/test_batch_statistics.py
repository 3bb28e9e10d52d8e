"""Statistics merged from chunks of rows, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn


def error(value: Tensor | None, reference: Tensor) -> float:
    assert value is not None
    return float((value.cpu().double() - reference).abs().max() / reference.abs().max())


@pytest.mark.gpu
@pytest.mark.usefixtures("several_chunks")
@pytest.mark.parametrize("channels", [3, 16])
def test_moments_of_chunks_and_of_all(
    channels: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tiles of a chunk, and the last of both with fewer rows."""
    from batchformer.lab.models.kernels import batch_norm as batch_statistics

    monkeypatch.setattr(batch_statistics, "MOMENTS_TILE", 16)
    torch.manual_seed(0)
    y = (100 + torch.randn(2, channels, 3, 5)).to(device)
    y = y.contiguous(memory_format=torch.channels_last)
    moments = batch_statistics.row_moments(y)
    rows = y.permute(0, 2, 3, 1).reshape(-1, channels).cpu().double()
    chunks = rows.split(moments.rows)
    assert len(chunks) == moments.parts.shape[2] > 1 and len(chunks[-1]) < moments.rows
    means = torch.stack([chunk.mean(0) for chunk in chunks], 1)
    squares = torch.stack([(c - c.mean(0)).square().sum(0) for c in chunks], 1)
    assert error(moments.parts[0], means) < 1e-6 and error(moments.parts[1], squares) < 1e-4

    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3).to(device)
    torch.nn.init.constant_(norm.running_mean, 5.0)  # type: ignore[arg-type]
    torch.nn.init.constant_(norm.running_var, 3.0)  # type: ignore[arg-type]
    mean, inverse = batch_statistics.merge(moments, y, norm)
    assert error(mean, rows.mean(0)) < 1e-6
    assert error(inverse, (rows.var(0, correction=0) + 1e-3).rsqrt()) < 1e-4
    assert error(norm.running_mean, 0.7 * 5 + 0.3 * rows.mean(0)) < 1e-6
    assert error(norm.running_var, 0.7 * 3 + 0.3 * rows.var(0)) < 1e-4
    assert norm.num_batches_tracked == 1
