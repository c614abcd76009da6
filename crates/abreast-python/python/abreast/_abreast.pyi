from collections.abc import Sequence
from typing import Any

STATUS: dict[str, int]
"""The bits of a status word by name."""
__version__: str

class Tensor:
    """Contiguous memory with a shape and an element type, for DLPack: `numpy.from_dlpack`, `torch.from_dlpack` and the like take it
    without a copy."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """Name of the element type, such as "bfloat16"."""
    @property
    def device(self) -> str:
        """ "cpu", or "cuda:0" and the like."""
    @property
    def data_ptr(self) -> int:
        """Address of the first element, on the device."""
    @property
    def read_only(self) -> bool: ...
    def view(self, dtype: str) -> Tensor:
        """The same bytes as elements of another type of the same size."""
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def zeros(shape: Sequence[int], dtype: str = "float32", *, device: str = "cpu") -> Tensor: ...
def view(array: Any, dtype: str) -> Tensor: ...
def from_pointer(
    address: int,
    shape: Sequence[int],
    dtype: str,
    *,
    device: str = "cpu",
    owner: Any = None,
    read_only: bool = False,
) -> Tensor: ...
def describe(device: str = "cpu") -> str: ...
def status_names(word: int) -> str: ...
def release_stream(stream: Any, *, device: str = "cuda:0") -> bool: ...
def sparse_attention(args: dict[str, Any]) -> Any: ...
def index_scores(args: dict[str, Any]) -> Any: ...
def top_k(args: dict[str, Any]) -> Any: ...
def select_keys(args: dict[str, Any]) -> Any: ...
def compress(args: dict[str, Any]) -> Any: ...
def convert_state(args: dict[str, Any]) -> Any: ...
def gather_rows(args: dict[str, Any]) -> Any: ...
