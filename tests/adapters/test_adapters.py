"""What importing the package brings in, and what it does not."""

from __future__ import annotations

import subprocess
import sys


def test_importing_batchformer_imports_no_training_library() -> None:
    names = ("lightning", "pytorch_lightning", "transformers", "accelerate", "timm", "peft")
    code = (
        "import sys, batchformer, batchformer.adapters\n"
        f"print([name for name in {names} if name in sys.modules])\n"
        "import batchformer.adapters.transformers, batchformer.adapters.accelerate\n"
        f"print([name for name in {names} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
