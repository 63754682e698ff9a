#!/usr/bin/env python3
"""Times context parallelism of finite-attention beside torch's, on the GPUs of one host, in turns.

Ours is `fattn ring --bench` (ranks are threads, copies between GPUs); torch's is
torch.distributed.tensor.experimental.context_parallel under torchrun, with the attention and the way of
exchanging keys that are its fastest: cuDNN or FlashAttention-2, all-gather or all-to-all. Both are causal, bf16,
zigzag. Each is run `--rounds` times, one after the other; times are medians.

    python3 context_parallel.py --fattn target/release/fattn --ranks 2 4 --heads-k 32 8
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BACKENDS = ("cudnn", "flash")
ROTATIONS = ("allgather", "alltoall")


def arguments():
    here = Path(__file__).resolve().parent
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    # Path drops a leading "./", without which the shell's search path would be looked through.
    add("--fattn", type=lambda text: Path(text).resolve(), default=here.parent / "target/release/fattn")
    add("--ranks", type=int, nargs="+", default=[2])
    add("--rows-per-rank", type=int, default=8192)
    add("--heads", type=int, default=32)
    add("--heads-k", type=int, nargs="+", default=[32, 8])
    add("--head-dim", type=int, default=128)
    add("--passes", type=int, default=10)
    add("--rounds", type=int, default=3)
    add("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def ours(of, ranks, heads_k):
    """Milliseconds of a forward, and of forward and backward: of one GPU and of all ranks."""
    command = [of.fattn, "ring", "--bench", "--ranks", ranks, "--rows-per-rank", of.rows_per_rank, "--heads",
        of.heads, "--heads-k", heads_k, "--head-dim", of.head_dim, "--passes", of.passes]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    rows = [line.rsplit(maxsplit=3) for line in done.stdout.splitlines() if line.startswith("forward")]
    return [[float(one), float(ring)] for _, one, ring, _ in rows]


def theirs(of, ranks, heads_k):
    """Milliseconds of a forward, and of forward and backward, by backend and rotation; or why there are none."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            __file__, "--worker", out.name, "--rows-per-rank", of.rows_per_rank, "--heads", of.heads, "--heads-k",
            heads_k, "--head-dim", of.head_dim, "--passes", of.passes]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            return {}, done.stderr.strip().splitlines()[-1:] or ["failed"]
        return json.loads(Path(out.name).read_text()), []


def worker(of):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (ranks,))
    rows, heads_k = of.rows_per_rank * ranks, of.heads_k[0]
    kinds = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    results = {}

    def tensor(heads, seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        shape = (1, heads, rows, of.head_dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    def time(work):
        times = []
        for number in range(3 + of.passes):
            dist.barrier()
            for _ in range(2):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                work()
                end.record()
            torch.cuda.synchronize()
            if number >= 3:
                times.append(start.elapsed_time(end))
        worst = torch.tensor([statistics.median(times)], device="cuda")
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return worst.item()

    for backend in BACKENDS:
        for rotation in ROTATIONS:
            try:
                set_rotate_method(rotation)
                q, k, v = tensor(of.heads, 1), tensor(heads_k, 2), tensor(heads_k, 3)
                with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2],
                        no_restore_buffers={q, k, v}), sdpa_kernel([kinds[backend]]):
                    # They are this rank's shares now.
                    for one in (q, k, v):
                        one.requires_grad_(True)

                    def attention():
                        return functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                            enable_gqa=heads_k != of.heads)

                    d_o = torch.randn_like(attention())

                    def forward():
                        with torch.no_grad():
                            attention()

                    def both():
                        q.grad = k.grad = v.grad = None
                        attention().backward(d_o)

                    results[f"{backend} {rotation}"] = [time(forward), time(both)]
            except (RuntimeError, NotImplementedError, ImportError, AttributeError, ValueError, TypeError) as error:
                results[f"{backend} {rotation}"] = str(error).splitlines()[0][:120]
    if rank == 0:
        Path(of.worker).write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    of = arguments()
    if of.worker:
        worker(of)
        return
    print(f"bf16, causal, {of.rows_per_rank} rows a GPU, head_dim {of.head_dim}; ms, forward / forward + backward")
    for ranks in of.ranks:
        for heads_k in of.heads_k:
            own, other, wrong = [], {}, []
            for _ in range(of.rounds):
                own.append(ours(of, ranks, heads_k))
                times, reason = theirs(of, ranks, heads_k)
                wrong = wrong or reason
                for name, pair in times.items():
                    if isinstance(pair, str):
                        wrong.append(f"{name}: {pair}")
                    else:
                        other.setdefault(name, []).append(pair)
            median = lambda pick: statistics.median(map(pick, own))
            one = [median(lambda t, i=i: t[i][0]) for i in range(2)]
            ring = [median(lambda t, i=i: t[i][1]) for i in range(2)]
            rate = [100 * one[i] / (ranks * ring[i]) for i in range(2)]
            print(f"P {ranks}, heads {of.heads}:{heads_k}")
            print(f"  one GPU             {one[0]:8.3f} / {one[1]:8.3f}")
            print(f"  ours                {ring[0]:8.3f} / {ring[1]:8.3f}   {rate[0]:.1f} / {rate[1]:.1f} % of one GPU")
            for name, pairs in other.items():
                of_both = [statistics.median(pair[i] for pair in pairs) for i in range(2)]
                print(f"  torch {name:<14}{of_both[0]:8.3f} / {of_both[1]:8.3f}   ours is "
                    f"{of_both[0] / ring[0]:.2f} / {of_both[1] / ring[1]:.2f} x as fast")
            for reason in dict.fromkeys(wrong):
                print(f"  torch {reason}")


if __name__ == "__main__":
    main()
