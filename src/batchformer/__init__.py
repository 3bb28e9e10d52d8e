"""BatchFormer: a Transformer encoder over the batch axis, in any PyTorch model, in one line."""

from batchformer.attach import attach as attach
from batchformer.attach import detach as detach
from batchformer.attach import export as export
from batchformer.attach import param_groups as param_groups
from batchformer.check import check as check
from batchformer.module import BatchFormer as BatchFormer
from batchformer.module import batch_former as batch_former
from batchformer.module import two_streams as two_streams
from batchformer.streams import duplicate as duplicate
from batchformer.streams import match as match
from batchformer.streams import split as split
from batchformer.streams import stream_loss as stream_loss

__version__ = "0.1.0"
