"""BatchFormer in other training loops: Hugging Face ``Trainer``, Lightning and Accelerate.

Each file needs only its own library, and ``import batchformer`` imports none of them.
"""
