"""What every part of the benchmark is told, and where it runs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class BenchSettings:
    """How and where to measure.

    Args:
        device: where the work is done.
        full: larger grids, and what takes long to prepare.
        repeats: rounds of every measurement; None leaves them to each part and its time.
    """

    device: torch.device
    full: bool = False
    repeats: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def layer_dtype(self) -> torch.dtype:
        """The type in which layers are measured by themselves."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    def environment(self, dtype: torch.dtype | str) -> dict[str, str]:
        """Machine, device, threads, torch and type: without them a timing means nothing."""
        kind = str(dtype).removeprefix("torch.")
        name = torch.cuda.get_device_name(self.device) if self.on_gpu else str(self.device)
        return {
            "machine": f"{processor_name()} with {os.cpu_count()} cores",
            "device": name,
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
            "dtype": kind,
        }

    def need_gpu(self, what: str) -> None:
        """Refuse a part that has nothing to measure elsewhere."""
        if not self.on_gpu:
            raise RuntimeError(
                f"{what} needs a CUDA device, and this is {self.device}; leave it out with --only"
            )


def processor_name() -> str:
    """The processor as its maker calls it, where the system says so."""
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        for line in listed.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()
