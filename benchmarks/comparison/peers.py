"""Which peers there are, and what each is not asked for."""

from comparison import masks

PEERS = ("flash", "cudnn", "efficient", "fa3", "fa4", "flex")
OF_TORCH = ("flash", "cudnn", "efficient", "flex")
PACKED = ("flash", "fa3", "fa4")
WINDOWS = ("fa3", "fa4", "flex")


def refusal(name, case, direction, is_deterministic):
    """Why a peer is not asked for a case, or None; it may still refuse by itself."""
    if case.dtype_name() == "float32" and name != "efficient":
        return "no f32"
    if case.offsets is not None and name not in PACKED:
        return "no packed sequences"
    if masks.is_window(case.mask) and name not in WINDOWS:
        return "no windows"
    if name == "fa3" and direction == "backward":
        return "forward only"
    if name == "flex" and is_deterministic:
        return "no deterministic mode of its own"
    return None
