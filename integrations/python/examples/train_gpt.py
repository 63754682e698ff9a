"""Trains a small GPT on characters twice from one seed: with this package's attention, and with PyTorch's.

    python train_gpt.py [--steps 1000] [--compile] [--text FILE] [--svg train_gpt.svg]

Both runs see the same weights and the same batches. Printed are the losses at every 100th step and how far
apart they are, tokens per second of the whole step, and of the attention alone (forward and backward, at the
shapes of the model); the picture has both curves. Needs a GPU, unless ``--device cpu`` asks for the emulator,
which is for sizes such as ``--layers 1 --width 32 --heads 2 --rows 32 --batch 1 --steps 3``.

Text is letters that the program draws by rules of its own, so that nothing is fetched; ``--text`` takes a file.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F

import finite_attention as fa

Tensor = torch.Tensor
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def of_package(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of ``[B, S, H, D]`` by this package."""
    return fa.flash_attn_func(q, k, v, causal=True)


def of_pytorch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by PyTorch."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


ATTENTION = {"finite-attention": of_package, "torch SDPA": of_pytorch}


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, rows, 3, self.heads, width // self.heads)
        x = x + self.out(self.attention(*qkv.unbind(2)).reshape(batch, rows, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """A decoder of characters; weights of the head are those of the embedding."""

    def __init__(self, symbols: int, rows: int, width: int, heads: int, layers: int, attention: Attention):
        super().__init__()
        self.symbol, self.position = nn.Embedding(symbols, width), nn.Embedding(rows, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                depth = math.sqrt(2 * layers) if name.endswith(("out.weight", "mlp.2.weight")) else 1
                nn.init.normal_(parameter, std=0.02 / depth)

    def forward(self, symbols: Tensor, targets: Tensor) -> Tensor:
        x = self.symbol(symbols) + self.position.weight[: symbols.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.symbol.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def made_up_text(letters: int, seed: int) -> str:
    """Letters of a chain: half of them are drawn by the letter before, half by the chapter that they are in.

    Each letter has six that may follow it, and each chapter of 1,000 letters six of its own, the first of them most
    often. What a chapter prefers is seen in what it has so far, of which attention, before it has learned anything, is
    the mean: what can be learned comes bit by bit, and from the first step on. Where it comes at one stroke, as of
    letters that depend on the one before the last, two runs that differ by a rounding are some steps apart, and so are
    their losses, with nothing wrong; and where nothing can be learned for long, as of letters that depend on pairs,
    rounding errors drive weights meanwhile, until gradients in bf16 are mostly noise, of any attention.
    """
    rng = random.Random(seed)
    alphabet = "abcdefghijklmnopqrstuvwxyz "
    followers = {letter: rng.sample(alphabet, 6) for letter in alphabet}
    likely = [1 / rank for rank in range(1, 7)]
    text, of_chapter = ["a"], alphabet[:6]
    for at, rank in enumerate(rng.choices(range(6), likely, k=letters - 1)):
        if at % 1000 == 0:
            of_chapter = rng.sample(alphabet, 6)
        text.append((followers[text[-1]] if rng.random() < 0.5 else of_chapter)[rank])
    return "".join(text)


class Batches:
    """Rows of symbols and what follows each, the same for every run of a seed."""

    def __init__(self, text: str, batch: int, rows: int, device: torch.device, seed: int) -> None:
        self.alphabet = sorted(set(text))
        index = {symbol: number for number, symbol in enumerate(self.alphabet)}
        self._symbols = torch.tensor([index[symbol] for symbol in text], device=device)
        self._batch, self._rows = batch, rows
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        last = len(self._symbols) - self._rows - 1
        starts = torch.randint(last, (self._batch, 1), generator=self._generator)
        at = starts.to(self._symbols.device) + torch.arange(self._rows + 1, device=self._symbols.device)
        rows = self._symbols[at]
        return rows[:, :-1], rows[:, 1:]


def train(attention: Attention, text: str, said: argparse.Namespace) -> tuple[list[float], float]:
    """The loss of every step, and tokens per second but for the first tenth."""
    device = torch.device(said.device)
    torch.manual_seed(said.seed)
    batches = Batches(text, said.batch, said.rows, device, said.seed)
    model = Gpt(len(batches.alphabet), said.rows, said.width, said.heads, said.layers, attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=said.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm = max(1, said.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * step / said.steps))
    )
    forward: Any = torch.compile(model) if said.compile else model
    losses, started, counted = [], 0.0, max(1, said.steps // 10)
    for step in range(said.steps):
        if step == counted:
            started = now(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = forward(*batches.draw())
        loss.backward()
        clip = fa.clip_grad_norm_ if said.guard else nn.utils.clip_grad_norm_
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        losses.append(loss.detach())
    seconds = now(device) - started
    tokens = (said.steps - counted) * said.batch * said.rows
    return torch.stack(losses).tolist(), tokens / seconds if said.steps > counted else float("nan")


def now(device: torch.device) -> float:
    """Seconds, once the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def time_attention(attention: Attention, said: argparse.Namespace) -> float:
    """Tokens per second of attention alone, forward and backward, all layers; the median of some rounds."""
    device = torch.device(said.device)
    shape = (said.batch, said.rows, said.heads, said.width // said.heads)
    q, k, v, do = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(4))
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]

    def step() -> None:
        torch.autograd.grad(attention(*inputs), inputs, do)

    repeats = 50 if device.type == "cuda" else 1
    for _ in range(3 if device.type == "cuda" else 0):
        step()
    seconds = []
    for _ in range(7 if device.type == "cuda" else 1):
        started = now(device)
        for _ in range(repeats):
            step()
        seconds.append((now(device) - started) / repeats)
    return said.batch * said.rows / (sorted(seconds)[len(seconds) // 2] * said.layers)


def main() -> int:
    """Trains, prints and draws; exits with 1 if losses are further apart than half a percent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16, help="rows of characters of a step")
    parser.add_argument("--rows", type=int, default=2048, help="characters of a row")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rate", type=float, default=3e-4, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("--guard", action="store_true", help="clip by this package, which refuses NaN")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for the emulator")
    parser.add_argument("--text", type=Path, help="what to learn from")
    parser.add_argument("--svg", type=Path, default=Path("train_gpt.svg"), help="where the picture goes")
    parser.add_argument("--json", type=Path, help="where all figures go")
    said = parser.parse_args()
    if said.device.startswith("cuda") and not torch.cuda.is_available():
        print("PyTorch finds no GPU; --device cpu runs the emulator, for small sizes", file=sys.stderr)
        return 2
    text = said.text.read_text(encoding="utf-8") if said.text else made_up_text(3_000_000, said.seed)
    losses, figures = {}, {}
    for name, attention in ATTENTION.items():
        losses[name], tokens = train(attention, text, said)
        alone = time_attention(attention, said)
        figures[name] = {"tokens per second": tokens, "of attention alone": alone}
        print(f"{name}: {tokens:,.0f} tokens/s, attention alone {alone:,.0f}")
    ours, theirs = losses.values()
    apart = report(ours, theirs)
    ratio = figures["finite-attention"]["of attention alone"] / figures["torch SDPA"]["of attention alone"]
    print(f"losses at most {100 * apart:.3f} % apart at these steps; attention {ratio:.2f} x torch SDPA")
    if said.json:
        said.json.write_text(json.dumps({"losses": losses, "figures": figures}))
    said.svg.write_text(picture(losses, figures))
    print(f"wrote {said.svg}")
    return 0 if apart <= 0.005 else 1


def report(ours: list[float], theirs: list[float]) -> float:
    """Prints the losses at every 100th step and returns the largest distance, relative to the second."""
    apart = 0.0
    print(f"{'step':>6} {'finite-attention':>17} {'torch SDPA':>11} {'apart':>8}")
    shown = range(99, len(ours), 100) if len(ours) >= 100 else range(len(ours))
    for step in shown:
        # A loss of one batch, the same batch for both.
        distance = abs(ours[step] - theirs[step]) / theirs[step]
        apart = max(apart, distance)
        print(f"{step + 1:>6} {ours[step]:>17.4f} {theirs[step]:>11.4f} {100 * distance:>7.3f}%")
    return apart


COLOURS = {"finite-attention": "#c2410c", "torch SDPA": "#1d4ed8"}


def picture(losses: dict[str, list[float]], figures: dict[str, dict[str, float]]) -> str:
    """Both curves of the loss, and tokens per second in the legend, as SVG."""
    width, height, left, bottom = 720, 400, 60, 340
    most = max(max(curve) for curve in losses.values())
    steps = max(len(curve) for curve in losses.values())
    x = lambda step: left + (width - left - 20) * step / max(steps - 1, 1)  # noqa: E731
    y = lambda loss: bottom - (bottom - 20) * loss / most  # noqa: E731
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for tick in range(int(most) + 1):
        parts.append(f'<path d="M{left} {y(tick):.1f}H{width - 20}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for step in (0, steps // 2, steps):
        parts.append(f'<text x="{x(step):.0f}" y="{bottom + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(left + width) / 2}" y="{bottom + 36}" text-anchor="middle">step</text>'
                 f'<text x="14" y="{bottom / 2}" transform="rotate(-90 14 {bottom / 2})">loss (nats)</text>')
    for row, (name, curve) in enumerate(losses.items()):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in enumerate(curve))
        dashes = "" if row == 0 else ' stroke-dasharray="5 4"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"'
                     f'{dashes}/>')
        said = (f"{name}: {figures[name]['tokens per second']:,.0f} tokens/s, attention alone "
                f"{figures[name]['of attention alone']:,.0f}")
        parts.append(f'<text x="{width - 24}" y="{40 + 20 * row}" text-anchor="end" '
                     f'fill="{COLOURS[name]}">{said}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
