"""FlashAttention-3 and FlashAttention-4: packages of their own, found or the run stops.

FA3 is the wheel fa3-fwd: forward only, and as it is built without windows and f16. It is called by its
operator, because a custom operator of Python around it takes longer than a small forward pass.
"""

import argparse
import atexit
import importlib
import importlib.metadata
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from comparison import CannotRun, first_line, masks

MODULES = {"fa3": "fa3_fwd_interface", "fa4": "flash_attn.cute"}
PACKAGES = {"fa3": "fa3-fwd", "fa4": "flash-attn-4"}
HINTS = {
    "fa3": "give --fa3 the wheel of fa3-fwd, or the folder that it was unpacked into",
    "fa4": "install flash-attn-4, or name its folder and nvidia_cutlass_dsl/dsl_packages in there in PYTHONPATH",
}


def package(text):
    """What --fa3 names: the folder to import from, or a wheel, also the only one of a folder."""
    path = Path(text)
    if (path / f"{MODULES['fa3']}.py").exists():
        return path
    wheels = [path] if path.is_file() else sorted(path.glob("*.whl"))
    if len(wheels) != 1 or not zipfile.is_zipfile(wheels[0]):
        expected = f"expected a wheel or a folder with {MODULES['fa3']}.py"
        raise argparse.ArgumentTypeError(f"{expected}, got {path}")
    return wheels[0]


def unpacked(path):
    """The folder to import from. A wheel is unpacked for this run: Python cannot load libraries from inside
    of one."""
    if path.is_dir():
        return path
    folder = tempfile.mkdtemp(prefix="fa3-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)
    return Path(folder)


def load(name, path=None):
    """Imports a peer, from a `package` if there is one, and returns its version. Stops the run if it cannot."""
    if path is not None:
        sys.path.insert(0, str(unpacked(path).resolve()))
    try:
        importlib.import_module(MODULES[name])
    except Exception as error:  # also what a library that does not fit raises
        text = f"--peers {name}: cannot import {MODULES[name]} ({first_line(error)}); {HINTS[name]}"
        raise CannotRun(text) from None
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def sequences(case):
    """The arguments that both have for packed sequences."""
    if case.offsets is None:
        return {}
    longest = max(case.lengths)
    return {
        "cu_seqlens_q": case.offsets, "cu_seqlens_k": case.offsets,
        "max_seqlen_q": longest, "max_seqlen_k": longest,
    }


def on_case(case, function, options):
    """A function of BSHD tensors; it gets packed ones without their batch, as views."""

    def attention(q, k, v):
        if case.offsets is None:
            result = function(q, k, v, **options)
        else:
            result = function(q.squeeze(0), k.squeeze(0), v.squeeze(0), **options)
        o = result[0] if isinstance(result, (tuple, list)) else result
        return o if case.offsets is None else o.unsqueeze(0)

    return attention


def fa3_options(case):
    options = {"softmax_scale": case.dim**-0.5, "is_causal": case.causal, "num_splits": 1}
    if masks.is_window(case.mask):
        options |= {"window_size_left": case.mask[0], "window_size_right": case.mask[1]}
    return options | sequences(case)


def fa4_options(case, is_deterministic):
    options = {"causal": case.causal, "deterministic": is_deterministic}
    if masks.is_window(case.mask):
        options["window_size"] = tuple(None if side < 0 else side for side in case.mask)
    return options | sequences(case)


def fa3(case):
    operators = importlib.import_module(MODULES["fa3"]).fa3_fwd_cuda
    return on_case(case, operators.fwd.default, fa3_options(case))


def fa4(case, is_deterministic):
    module = importlib.import_module(MODULES["fa4"])
    packed = case.offsets is not None
    function = module.flash_attn_varlen_func if packed else module.flash_attn_func
    return on_case(case, function, fa4_options(case, is_deterministic))
