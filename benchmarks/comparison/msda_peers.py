"""Peers of multi-scale deformable attention: what each is, whether it is there, and how it is called.

Each is optional: what cannot be imported is reported with the reason and left out. msda-triton is the package of
that name on GitHub (rziga/msda-triton), deformops that on PyPI; of deformops there are several kernels:

deformops            what it chooses by itself: on Hopper its Triton kernels, which add up dvalue in the type of value
deformops-f32acc     the same, with dvalue added up in f32, as ours is
deformops-autotuned  its experimental kernel with tuned blocks
deformops-cuda       its CUDA kernels, compiled here if DEFORMOPS_COMPILE=1 says so
"""

import importlib
import importlib.metadata

from comparison import first_line

PEERS = ("grid", "msda-triton", "deformops", "deformops-f32acc", "deformops-autotuned", "deformops-cuda")
DEFAULT = PEERS[:4]
PACKAGES = {"msda-triton": "msda-triton", **dict.fromkeys(PEERS[2:], "deformops")}
HINTS = {
    "msda-triton": "install a wheel of github.com/rziga/msda-triton",
    "deformops": "install deformops of PyPI (Python 3.12 or 3.13)",
}


class Missing(Exception):
    """Why a peer is not there, in one line."""


def refusal(name, dtype):
    """Why a peer is not asked for a type, or None; it may still refuse by itself."""
    if name == "msda-triton" and dtype == "bf16":
        return "no bf16"
    if name == "deformops-f32acc" and dtype == "f32":
        return "what deformops itself does in f32"
    return None


def version(name):
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def load(name):
    """The function of a peer, of (value, shapes, starts, locations, weights), shapes and starts of levels on the GPU
    in i32; it returns [B, N, H, C] or [B, N, H * C]. `Missing` if it is not there. Of grid there is none here."""
    try:
        return LOADERS[name]()
    except ImportError as error:
        raise Missing(f"{first_line(error)}; {HINTS[PACKAGES[name]]}") from None
    except Exception as error:  # what a package that does not fit raises, or has no kernels for this device
        raise Missing(first_line(error)) from None


def msda_triton():
    call = importlib.import_module("msda_triton.frontend").triton_multiscale_deformable_attention

    def sample(value, shapes, _starts, locations, weights):
        return call(value, shapes, locations, weights, "zeros", False)

    return sample


def deformops(**options):
    registry = importlib.import_module("deformops.registry")

    def sample(*inputs):
        return registry.msda(*inputs, **options)

    return sample


def deformops_f32acc():
    registry = importlib.import_module("deformops.registry")
    registry.msda.load(registry.Backend.TRITON)
    return deformops(backend=registry.Backend.TRITON, fp32acc=True)


def deformops_autotuned():
    folder = "deformops.backends.triton.experimental"
    return importlib.import_module(f"{folder}.msda_query_tiled_autotuned").forward


def deformops_cuda():
    registry = importlib.import_module("deformops.registry")
    registry.msda.load(registry.Backend.CUDA)
    return deformops(backend=registry.Backend.CUDA)


LOADERS = {
    "msda-triton": msda_triton, "deformops": deformops, "deformops-f32acc": deformops_f32acc,
    "deformops-autotuned": deformops_autotuned, "deformops-cuda": deformops_cuda,
}
