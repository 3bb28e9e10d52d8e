"""The defaults are the paper's."""

from batchformer.methods.config import ModuleConfig


def test_defaults() -> None:
    config = ModuleConfig()
    assert (config.heads, config.layers, config.dropout, config.lr_factor) == (4, 1, 0.5, 0.1)
    assert (config.attend, config.streams, config.loss_scale) == ("batch", "shared", "mean")
