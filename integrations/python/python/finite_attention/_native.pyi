"""The Rust half of the package: no part of what users call."""

from collections.abc import Callable, Sequence
from typing import Any

VERSION: str

# Address, shape, strides in elements, name of the dtype.
Tensor = tuple[int, Sequence[int], Sequence[int], str]
Memory = tuple[int, int]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
Scores = tuple[Tensor | None, tuple[Tensor, int] | None, Tensor | None, Tensor | None]
Outputs = tuple[Tensor, Tensor | None]
Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
Found = tuple[int, int, int, tuple[int, ...] | None, float]
MsdaProblem = tuple[Tensor, Sequence[Sequence[int]], Tensor, Tensor, int, bool, bool]
MsdaGradients = tuple[Tensor, Tensor, Tensor, Tensor]

class DeviceError(RuntimeError): ...

class Options:
    def __init__(
        self,
        *,
        causal: bool = ...,
        top_left: bool = ...,
        window: tuple[int | None, int | None] = ...,
        scale: float | None = ...,
        softcap: float | None = ...,
        dropout: tuple[float, int, int] | None = ...,
        deterministic: bool = ...,
        num_splits: int | None = ...,
        pack_gqa: bool | None = ...,
        precision: str | None = ...,
        longest: tuple[int, int] | None = ...,
    ) -> None: ...

def longest_sequences(
    cu_seqlens_q: Sequence[int],
    cu_seqlens_k: Sequence[int],
    rows: tuple[int, int],
    said: tuple[int | None, int | None],
) -> tuple[int, int]: ...

class Buffer:
    @property
    def address(self) -> int: ...
    def read(self, destination: int) -> None: ...

class Device:
    def __init__(self, name: str) -> None: ...
    @property
    def description(self) -> str: ...
    def allocate(self, bytes: int) -> Buffer: ...
    def upload(self, source: int, bytes: int) -> Buffer: ...
    def synchronize(self, stream: int = ...) -> None: ...
    def mask_bytes(self, mask: Tensor, keys: int) -> int: ...
    def prepare_mask(self, mask: Tensor, keys: int, memory: Memory, stream: int) -> None: ...
    def forward(
        self,
        problem: tuple[Options, Inputs, Scores, Outputs],
        allocate: Callable[[int], int],
        stream: int,
    ) -> None: ...
    def backward(
        self,
        problem: tuple[Options, Inputs, Scores, Outputs, Gradients],
        allocate: Callable[[int], int],
        stream: int,
    ) -> None: ...
    def watched_forward(
        self, problem: tuple[Options, Inputs, Scores, Outputs], stream: int
    ) -> tuple[str | None, str | None, str] | None: ...
    def watched_backward(
        self, problem: tuple[Options, Inputs, Scores, Outputs, Gradients], stream: int
    ) -> tuple[str | None, str | None, str] | None: ...
    def msda_forward(self, problem: MsdaProblem, o: Tensor, stream: int) -> None: ...
    def msda_backward(
        self,
        problem: MsdaProblem,
        gradients: MsdaGradients,
        deterministic: bool,
        allocate: Callable[[int], int],
        stream: int,
    ) -> None: ...
    def scan(self, tensor: Tensor, stream: int) -> Found: ...
    def clip(
        self, gradients: Sequence[tuple[str, Tensor]], max_norm: float, refuses_non_finite: bool, stream: int
    ) -> tuple[float, float]: ...

class GradScaler:
    def __init__(self, state: tuple[float, float, float, int, int]) -> None: ...
    @property
    def state(self) -> tuple[float, float, float, int, int]: ...
    def unscale(
        self, device: Device, optimizer: int, gradients: Sequence[tuple[str, Tensor]], stream: int
    ) -> list[tuple[str, Found]]: ...
    def note_unscaled(self, optimizer: int, found_non_finite: bool) -> None: ...
    def step(self, optimizer: int) -> bool: ...
    def update(self) -> float: ...

def ptx_kernels(ptx: str) -> list[tuple[str, list[tuple[str, int]]]]: ...
def ptx_run(
    ptx: str,
    entry: str,
    shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
    buffers: Sequence[tuple[bytes, bool]],
    arguments: Sequence[tuple[bytes | None, tuple[int, int] | None, tuple[Any, ...] | None]],
    *,
    schedules: int,
    seed: int,
    strict: bool,
    step_limit: int,
) -> tuple[str, list[tuple[bytes, list[bool]]]]: ...
