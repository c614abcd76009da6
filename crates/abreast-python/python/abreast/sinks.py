"""Sinks of -inf."""

from __future__ import annotations

import sys
from typing import Any

LOWEST = -3.4028234663852886e38
"""float32's lowest finite number: as a sink it takes no weight."""


def without_inf(sinks: Any, meaning: str) -> Any:
    """`sinks` as the library takes them: where -inf means "no sink", that is written as the lowest number. One small operation of the
    array's own library, on its device; NaN and +inf stay and fail closed."""
    if meaning == "invalid" or sinks is None:
        return sinks
    if meaning != "none":
        raise ValueError(f'sparse_attention: inf_sinks must be "invalid" or "none", got {meaning!r}')
    library = type(sinks).__module__.split(".")[0]
    if "torch" in sys.modules and isinstance(sinks, sys.modules["torch"].Tensor):
        return sinks.detach().clamp(min=LOWEST)
    if library in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.maximum(sinks, LOWEST)
    if library in ("numpy", "cupy"):
        module = sys.modules[library]
        return module.maximum(sinks, module.float32(LOWEST))
    raise TypeError(
        f"sparse_attention: inf_sinks must be \"invalid\" for sinks of {type(sinks).__name__}, got 'none': write {LOWEST} instead of -inf"
    )
