"""DeepSeek-V4 decode attention for any number of independent requests in one call.

**The law of rows: the bits that a row gets jointly are the bits that it gets alone.** They do not depend on how many rows run
beside it, on their order, lengths or contents, on threads, or on what ran before.

Tensors are NumPy arrays, or anything that speaks DLPack: PyTorch, CuPy, JAX. Nothing is copied. On CUDA a call is queued on the
current stream of the tensors' library and returns at once; it may be captured into a CUDA graph.
"""

from ._abreast import (
    STATUS,
    Tensor,
    __version__,
    describe,
    from_pointer,
    release_stream,
    status_names,
    view,
    zeros,
)
from .check import Difference, check_rows
from .ops import (
    compress,
    convert_state,
    gather_rows,
    index_scores,
    select_keys,
    sparse_attention,
    top_k,
)

__all__ = [
    "STATUS",
    "Difference",
    "Tensor",
    "__version__",
    "check_rows",
    "compress",
    "convert_state",
    "describe",
    "from_pointer",
    "gather_rows",
    "index_scores",
    "release_stream",
    "select_keys",
    "sparse_attention",
    "status_names",
    "top_k",
    "view",
    "zeros",
]
