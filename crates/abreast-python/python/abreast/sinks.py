"""Sinks of -inf."""

from __future__ import annotations

import sys
from typing import Any

LOWEST = -3.4028234663852886e38
"""float32's lowest finite number: as a sink it takes no weight."""


def without_inf(sinks: Any, meaning: str) -> Any:
    """`sinks` as the library takes them: where -inf means "no sink", that is written as the lowest number. One small operation of the
    array's own library, on its device; NaN and +inf stay and fail closed."""
    if meaning not in ("invalid", "none"):
        raise ValueError(f'sparse_attention: inf_sinks must be "invalid" or "none", got {meaning!r}')
    if meaning == "invalid" or sinks is None:
        return sinks
    library = type(sinks).__module__.split(".")[0]
    if "torch" in sys.modules and isinstance(sinks, sys.modules["torch"].Tensor):
        # A gradient stays noted, and is refused as everywhere.
        return sinks.clamp(min=LOWEST)
    if library in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.maximum(sinks, LOWEST)
    if library in ("numpy", "cupy"):
        module = sys.modules[library]
        # Another type is refused as it is, and not made float32 in passing.
        return module.maximum(sinks, module.float32(LOWEST)) if sinks.dtype == module.float32 else sinks
    raise TypeError(
        f"sparse_attention: inf_sinks must be \"invalid\" for sinks of {type(sinks).__name__}, got 'none': write {LOWEST} instead of -inf"
    )
