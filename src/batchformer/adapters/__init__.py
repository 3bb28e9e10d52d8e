"""BatchFormer under other training loops: Hugging Face ``Trainer``, Lightning and Accelerate.

Each module needs its own library only, and nothing here is imported by ``import batchformer``.
"""
