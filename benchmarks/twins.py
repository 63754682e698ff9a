#!/usr/bin/env python3
"""What `fattn sanitize` says of kernels of others that are right, and of the same ones with a bug planted, with no GPU.

The kernels are those of twins/cub.cu and cub_device.cu (CUB), of NVIDIA's cuda-samples
(https://github.com/NVIDIA/cuda-samples, a checkout), and of twins/tutorials.py (Triton's tutorials). nvcc comes from
PyPI (nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime, nvidia-cuda-cccl, all of one version), and so
does Triton. As they are, none should have an error. Then one thing at a time is made wrong in the PTX: a barrier or a
wait is dropped, a fence, a guard is off by one, an atomic operation is a load and a store. Places that no thread comes to
are left out. What no check finds runs again with what the kernel leaves as it is in all its buffers as expected outputs, under
many more schedules (--outputs). So each change is found by a check, which knows nothing of what the kernel should compute; or
is seen in the outputs alone; or changes nothing that was looked at, such as a barrier that another one makes needless.

    python3 twins.py --samples cuda-samples --nvcc nvidia/cu13/bin/nvcc --fattn target/release/fattn
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent / "twins"
OUT = "uninit,written"

# Name of the kernel: grid, shared bytes, words of `out`.
CUB = {
    **{name: 2 for name in ("reduce_raking", "reduce_raking_commutative", "reduce_warps")},
    **{name: 1024 for name in ("scan_raking", "scan_raking_memoize", "scan_warps", "radix_sort", "radix_sort_striped")},
    **{name: 1024 for name in ("merge_sort", "load_vectorized", "load_transposed", "load_warps_transposed")},
    **{name: 1024 for name in ("load_striped", "exchange", "adjacent_difference", "discontinuity", "shuffle")},
    **{name: 128 for name in ("histogram_atomic", "histogram_sort")},
    **{name: 1024 for name in ("warp_merge_sort", "warp_exchange")},
    "warp_reduce": 8,
    "warp_reduce_of_16": 16,
    "warp_scan": 256,
}

# Tiles that nobody has summed yet, behind those before the first.
TILES = bytes(256) + (99).to_bytes(8, "little") * 3
# Of twins/cub_device.cu.
DEVICE = [
    ("28DeviceReduceSingleTileKernel.*EPKiPij",
     f"--block 256 --arg buf:i32:3000:iota --arg buf:i32:1:{OUT} --arg u32:3000 --arg pack:u8:0 --arg u32:0 --arg pack:u8:0"),
    ("16DeviceScanKernel",
     f"--grid 3 --block 128 --arg buf:i32:9000:iota --arg buf:i32:9000:{OUT} --arg pack:ref:tiles --buffer file:TILES,name=tiles "
     "--arg u32:0 --arg pack:u8:0 --arg pack:u64:0;u64:0 --arg u32:9000"),
]

INTS = f"--shared 2048 --arg buf:i32:700:iota --arg buf:i32:2:{OUT} --arg u32:700"
SORT = f"--block 512 --arg buf:u32:1024:{OUT} --arg buf:u32:1024:{OUT} --arg buf:u32:1024:random:1 --arg buf:u32:1024:iota"
MATRICES = f"--grid 2,2 --arg buf:f32:1024:{OUT} --arg buf:f32:1024:random:1 --arg buf:f32:1024:random:2 --arg u32:32 --arg u32:32"
TURN = f"--arg buf:f32:64x64:{OUT} --arg buf:f32:64x64:iota --arg u32:64 --arg u32:64"


def gemm(ty, size, sums, scale):
    factors = " ".join(f"--arg buf:{ty}:{size}x{size}:random:{seed}" for seed in (1, 2))
    sides = " ".join([f"--arg u32:{size}"] * 3)
    return (
        f"--grid 1,2 --block 64 {factors} --arg buf:{sums}:{size}x{size}:random:3 "
        f"--arg buf:{sums}:{size}x{size}:{OUT} {sides} --arg {scale}:1 --arg {scale}:2"
    )


# Source, part of the mangled name, options.
SAMPLES = [
    ("0_Introduction/vectorAdd/vectorAdd.cu", "9vectorAdd",
     f"--grid 4 --block 128 --arg buf:f32:500:random:1 --arg buf:f32:500:random:2 --arg buf:f32:500:{OUT} --arg u32:500"),
    ("0_Introduction/mergeSort/mergeSort.cu", "21mergeSortSharedKernelILj1", f"{SORT} --arg u32:1024"),
    ("0_Introduction/simpleAWBarrier/simpleAWBarrier.cu", "27normVecByDotProduct|28normVecByDotProductAWBarrier",
     "--grid 2 --block 128 --shared 256 --arg buf:f32:600:random:1 --arg buf:f32:600:random:2 --arg buf:f64:2:zeros "
     "--arg u32:600"),
    *[("2_Concepts_and_Techniques/reduction/reduction_kernel.cu", name, f"--grid 2 --block 128 {INTS}")
      for name in ("reduce6IiLj128ELb0", "reduce7IiLj128ELb0", "9cg_reduceIi", "20multi_warp_cg_reduceIiLm128ELm64")],
    *[("2_Concepts_and_Techniques/reduction/reduction_kernel.cu", name, f"--grid 6 --block 128 {INTS.replace('i32:2', 'i32:6')}")
      for name in ("reduce0Ii", "reduce1Ii", "reduce2Ii")],
    *[("2_Concepts_and_Techniques/reduction/reduction_kernel.cu", name, f"--grid 3 --block 128 {INTS.replace('i32:2', 'i32:3')}")
      for name in ("reduce3Ii", "reduce4IiLj128", "reduce5IiLj128")],
    ("2_Concepts_and_Techniques/reductionMultiBlockCG/reductionMultiBlockCG.cu", "reduceSinglePassMultiBlockCG",
     f"--grid 4 --block 128 --shared 1024 --arg buf:f32:1000:random:1 --arg buf:f32:4:{OUT} --arg u32:1000"),
    ("2_Concepts_and_Techniques/threadFenceReduction/threadFenceReduction_kernel.cuh", "16reduceSinglePassILj128ELb0",
     f"--grid 4 --block 128 --shared 512 --arg buf:f32:1000:random:1 --arg buf:f32:4:{OUT} --arg u32:1000"),
    ("2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu", "17bitonicSortShared", f"{SORT} --arg u32:1024 --arg u32:1"),
    ("2_Concepts_and_Techniques/sortingNetworks/oddEvenMergeSort.cu", "22oddEvenMergeSortShared",
     f"{SORT} --arg u32:1024 --arg u32:1"),
    ("2_Concepts_and_Techniques/scan/scan.cu", "19scanExclusiveShared",
     f"--block 256 --arg buf:u32:1024:{OUT} --arg buf:u32:1024:iota --arg u32:1024"),
    ("2_Concepts_and_Techniques/shfl_scan/shfl_scan.cu", "14shfl_scan_test",
     f"--grid 2 --block 256 --shared 64 --arg buf:i32:512:iota --arg u32:32 --arg buf:i32:2:{OUT}"),
    ("2_Concepts_and_Techniques/histogram/histogram64.cu", "17histogram64Kernel",
     f"--grid 2 --block 64 --arg buf:u32:128:{OUT} --arg buf:u32:4096:random:1 --arg u32:1024"),
    ("2_Concepts_and_Techniques/histogram/histogram256.cu", "18histogram256Kernel",
     f"--grid 2 --block 192 --arg buf:u32:512:{OUT} --arg buf:u32:2000:random:1 --arg u32:2000"),
    ("2_Concepts_and_Techniques/histogram/histogram256.cu", "23mergeHistogram256Kernel",
     f"--grid 256 --block 256 --arg buf:u32:256:{OUT} --arg buf:u32:2560:iota --arg u32:10"),
    ("2_Concepts_and_Techniques/scalarProd/scalarProd.cu", "13scalarProdGPU",
     f"--grid 2 --block 256 --arg buf:f32:2:{OUT} --arg buf:f32:2000:random:1 --arg buf:f32:2000:random:2 --arg u32:2 --arg u32:1000"),
    *[("6_Performance/transpose/transpose.cu", name, f"--grid 2,2 --block 32,16 {TURN}")
      for name in ("18transposeCoalesced", "24transposeNoBankConflicts", "17transposeDiagonal")],
    *[("3_CUDA_Features/globalToShmemAsyncCopy/globalToShmemAsyncCopy.cu", name, f"--block 16,16 {MATRICES}")
      for name in ("28MatrixMulAsyncCopyLargeChunkI", "38MatrixMulAsyncCopyMultiStageLargeChunkI",
                   "28MatrixMulAsyncCopyMultiStageI", "29MatrixMulAsyncCopySingleStageI", "14MatrixMulNaiveI")],
    ("3_CUDA_Features/globalToShmemAsyncCopy/globalToShmemAsyncCopy.cu", "39MatrixMulAsyncCopyMultiStageSharedState",
     f"--block 16,20 {MATRICES}"),
    ("3_CUDA_Features/warpAggregatedAtomicsCG/warpAggregatedAtomicsCG.cu", "10filter_arr",
     "--grid 2 --block 128 --any-order --arg buf:i32:256:uninit --arg buf:i32:1:zeros --arg buf:i32:256:random:1 --arg u32:256"),
    ("3_CUDA_Features/binaryPartitionCG/binaryPartitionCG.cu", "20oddEvenCountAndSumCG",
     "--grid 2 --block 128 --arg buf:i32:256:iota --arg buf:i32:1:zeros --arg buf:i32:2:zeros --arg u32:256"),
    ("3_CUDA_Features/cudaTensorCoreGemm/cudaTensorCoreGemm.cu", "16simple_wmma_gemm", gemm("f16", 32, "f32", "f32")),
    ("3_CUDA_Features/bf16TensorCoreGemm/bf16TensorCoreGemm.cu", "20simple_wmma_bf16gemm", gemm("bf16", 32, "f32", "f32")),
    ("3_CUDA_Features/tf32TensorCoreGemm/tf32TensorCoreGemm.cu", "20simple_wmma_tf32gemm", gemm("f32", 32, "f32", "f32")),
    ("3_CUDA_Features/dmmaTensorCoreGemm/dmmaTensorCoreGemm.cu", "16simple_wmma_gemm", gemm("f64", 16, "f64", "f64")),
    ("3_CUDA_Features/immaTensorCoreGemm/immaTensorCoreGemm.cu", "21simple_wmma_gemm_imma", gemm("u8", 32, "i32", "u32")),
]

VECTOR = "buf:f32:500:random:1"
TRITON = {
    "vector_add": f"--grid 4 --arg {VECTOR} --arg {VECTOR} --arg buf:f32:500:{OUT} --arg u32:500",
    "softmax": f"--grid 3 --arg buf:f32:3x200:{OUT} --arg buf:f32:3x200:random:1 --arg u32:200 --arg u32:200",
    "matmul": f"--grid 2,2 --arg buf:f16:40x48:random:1 --arg buf:f16:48x56:random:2 --arg buf:f16:40x56:{OUT} "
              "--arg u32:40 --arg u32:56 --arg u32:48",
    "layer_norm": f"--grid 3 --arg buf:f32:3x300:random:1 --arg buf:f32:3x300:{OUT} --arg buf:f32:300:random:2 "
                  f"--arg buf:f32:300:random:3 --arg buf:f32:3:{OUT} --arg buf:f32:3:{OUT} --arg u32:300 --arg u32:300 --arg f32:1e-5",
    "dropout": f"--grid 4 --arg {VECTOR} --arg buf:f32:500:{OUT} --arg u32:500 --arg f32:0.5 --arg u32:123",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--samples", type=Path, help="a checkout of cuda-samples; without it they are left out")
    add("--nvcc", type=Path, required=True)
    add("--include", type=Path, action="append", default=[], help="where the headers of CUB are, if not beside nvcc's")
    add("--fattn", type=Path, required=True)
    add("--no-triton", action="store_true")
    add("--work", type=Path, default=Path("twins-work"), help="a folder for texts and results")
    add("--schedules", type=int, default=6)
    add("--outputs", type=int, default=64, help="schedules under which what no check finds is compared with what is right")
    add("--mutants", type=int, default=3, help="at most so many of a kind in a kernel")
    add("--jobs", type=int, default=2)
    add("--only", default="", help="kernels with this in their name")
    add("--markdown", type=Path, help="where to write the table")
    return parser.parse_args()


def compiled(args, source, include=()):
    """The PTX of a source, which is made once."""
    target = args.work / (source.stem + ".ptx")
    if not target.exists():
        if source.suffix == ".cuh":
            wrapper = args.work / (source.stem + ".cu")
            wrapper.write_text(f'#include "{source.resolve()}"\n')
            include, source = (*include, source.parent), wrapper
        folders = [option for folder in (*args.include, *include) for option in ("-I", folder)]
        options = ["-ptx", "-arch=compute_90a", "-lineinfo", "-std=c++17", "-w"]
        subprocess.run([args.nvcc, *options, *folders, source, "-o", target], check=True)
    return target.read_text()


def entries(ptx):
    return re.findall(r"\.entry\s+(\w+)\s*\(", ptx)


def kernels(args):
    """Group, name, PTX, entry and options of each kernel."""
    text = compiled(args, HERE / "cub.cu")
    for name, words in CUB.items():
        count = 256 if words in (2, 8, 16, 256) else 1024
        yield "CUB", name, text, name, f"--grid 2 --block 128 --arg buf:i32:{count}:random:1 --arg buf:i32:{words}:{OUT}".split()
    text = compiled(args, HERE / "cub_device.cu")
    tiles = args.work / "tiles.bin"
    tiles.write_bytes(TILES)
    for part, options in DEVICE:
        entry = next(entry for entry in entries(text) if re.search(part, entry))
        name = re.match(r"\d+(\w+?)Kernel", part).group(1)
        yield "CUB", name, text, entry, options.replace("TILES", str(tiles)).split()
    if args.samples:
        for source, part, options in SAMPLES:
            path = args.samples / "Samples" / source
            text = compiled(args, path, (args.samples / "Common", path.parent))
            entry = next(entry for entry in entries(text) if re.search(part, entry))
            yield "cuda-samples", f"{path.stem}: {part.split('|')[-1]}", text, entry, options.split()
    if not args.no_triton:
        sys.path.insert(0, str(HERE))
        import tutorials

        for name, text, threads, shared in tutorials.compile_all():
            entry = entries(text)[0]
            parameters = text[text.index(entry) :].split(")")[0].count(".param")
            given = TRITON[name].count("--arg")
            scratch = ["--arg", "u64:0"] * (parameters - given)
            options = ["--block", str(threads), "--shared", str(shared), *TRITON[name].split(), *scratch]
            yield "Triton", name, text, entry, options


def body(ptx, entry):
    """Where the statements of a kernel begin and end."""
    start = ptx.index("{", ptx.index(")", re.search(rf"\.entry\s+{entry}\s*\(", ptx).end()))
    return start, ptx.index("\n}", start)


NEXT = {"ge": "gt", "gt": "ge", "lt": "le", "le": "lt"}
ATOMIC = re.compile(
    r"(?:atom|red)((?:\.(?:shared|global))?)(?:::cta)?((?:\.\w+)*?)\.add(?:\.noftz)?\.(u32|s32|u64|f32|f64)\s+(?:(%\w+|_)\s*,\s*)?\[([^\]]+)\]\s*,\s*([^;]+);"
)


def plain(match):
    """An atomic sum as a load, a sum and a store."""
    space, _, ty, old, address, value = match.groups()
    rounding = ".rn" if ty.startswith("f") else ""
    keep = f"mov.{ty.replace('u', 'b')} {old}, was; " if old and old != "_" else ""
    return (
        f"{{ .reg .{ty} was, now; ld{space}.{ty} was, [{address}]; add{rounding}.{ty} now, was, {value}; {keep}"
        f"st{space}.{ty} [{address}], now; }}"
    )


KINDS = {
    "barrier": (re.compile(r"(?:bar|barrier)\.(?:cta\.)?(?:warp\.)?sync[^;]*;"), lambda _: ";"),
    "wait": (re.compile(r"cp\.async\.wait_(?:group|all)[^;]*;"), lambda _: ";"),
    "fence": (re.compile(r"(?:membar|fence)\.[^;]*;"), lambda _: ";"),
    "guard": (
        re.compile(r"(?<=setp\.)(ge|gt|lt|le)(?=\.[su](?:32|64)\s)"),
        lambda match: NEXT[match.group(1)],
    ),
    "atomic": (ATOMIC, plain),
}

# What comes of a planted bug.
RESULTS = {"check": "found by a check", "outputs": "seen in the outputs alone", "same": "changes nothing"}


def mutants(ptx, entry, most):
    """Of each kind the places that can be changed, well apart ones first: the text with that, and with a trap there."""
    start, end = body(ptx, entry)
    for kind, (pattern, change) in KINDS.items():
        found = [match for match in pattern.finditer(ptx, start, end) if not guarded(ptx, match, kind)]
        step = max(1, len(found) / most)
        first = [int(number * step) for number in range(min(most, len(found)))]
        places = []
        for number in [*first, *(number for number in range(len(found)) if number not in first)]:
            match = found[number]
            line = ptx.rfind("\n", 0, match.start()) + 1
            trap = ptx[:line] + "trap; " + ptx[line:]
            places.append((ptx[: match.start()] + change(match) + ptx[match.end() :], trap))
        yield kind, places


def guarded(ptx, match, kind):
    """A block of statements cannot stand behind a guard."""
    line = ptx[ptx.rfind("\n", 0, match.start()) + 1 : match.start()]
    return kind == "atomic" and "@" in line


def sanitize(args, path, entry, options, schedules):
    """What came of it: found by a check, seen in the outputs alone, the same as it should be, or refused; and why."""
    command = [args.fattn, "sanitize", "--ptx", path, "--entry", entry, "--schedules", str(schedules), "--json"]
    command += ["--step-limit", "3000000", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "check", "it takes too long"
    if done.returncode not in (0, 1):
        return "refused", done.stderr
    report = json.loads(done.stdout)
    errors = [finding["message"] for finding in report["findings"] if finding["severity"] == "error"]
    # Nothing else is wrong with these than what the outputs should be.
    wrong = [buffer["name"] for buffer in report["buffers"] if "as expected" in buffer["broken"]]
    unwritten = [buffer["name"] for buffer in report["buffers"] if "written" in buffer["broken"]]
    differing = [difference["buffer"] for difference in report["differences"] if "--any-order" not in options]
    if errors or differing or unwritten:
        return "check", f"errors: {errors}\ndepend on the schedule: {differing}\nnot written: {unwritten}"
    return ("outputs", f"not as expected: {wrong}") if wrong else ("same", "")


def with_results(options, folder, word):
    """The options with a file for each buffer: `out` or `expect`. Where any order is right, for those that start filled."""
    is_free = "--any-order" in options
    buffers = ("buf:",) if word == "out" or not is_free else ("buf:i32:1:zeros",)
    return [
        f"{option},{word}={folder / str(index)}" if option.startswith(buffers) else option
        for index, option in enumerate(options)
    ]


def twin(args, kernel):
    group, name, ptx, entry, options = kernel
    folder = args.work / re.sub(r"\W+", "_", f"{group}_{name}")
    folder.mkdir(exist_ok=True)
    path = folder / "clean.ptx"
    path.write_text(ptx)
    clean, text = sanitize(args, path, entry, with_results(options, folder, "out"), args.schedules)
    expecting = with_results(options, folder, "expect")
    if clean == "same":
        clean, text = sanitize(args, path, entry, expecting, args.outputs)
    (folder / "clean.txt").write_text(text)
    counts = Counter()
    if clean == "same":
        for kind, places in mutants(ptx, entry, args.mutants):
            for number, (mutant, trap) in enumerate(places):
                if sum(counts[kind, result] for result in RESULTS) == args.mutants:
                    break
                path = folder / "trap.ptx"
                path.write_text(trap)
                if sanitize(args, path, entry, options, args.schedules)[0] != "check":
                    continue
                path = folder / f"{kind}_{number}.ptx"
                path.write_text(mutant)
                result, text = sanitize(args, path, entry, expecting, args.schedules)
                if result in ("outputs", "same"):
                    result, text = sanitize(args, path, entry, expecting, args.outputs)
                path.with_suffix(".txt").write_text(f"{result}\n{text}")
                counts[kind, result] += 1
                if result == "refused":
                    print(f"{path}: {text}", file=sys.stderr)
    print(f"{group} {name}: {clean}, {dict(counts)}", flush=True)
    return group, name, clean, counts


def main():
    args = arguments()
    args.work.mkdir(exist_ok=True)
    args.work = args.work.resolve()
    chosen = [kernel for kernel in kernels(args) if args.only in kernel[1]]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda kernel: twin(args, kernel), chosen))
    groups = defaultdict(list)
    for result in results:
        groups[result[0]].append(result)
    groups["all"] = results
    lines = ["| kernels | without an error | planted | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * (len(KINDS) + 2)]
    for group, members in groups.items():
        counts = sum((counts for *_, counts in members), Counter())
        clean = sum(result == "same" for _, _, result, _ in members)
        named = f"| {group} | {clean} of {len(members)}"
        for result, title in RESULTS.items():
            cells = [str(counts[kind, result]) for kind in KINDS]
            lines.append(f"{named} | {title} | " + " | ".join(cells) + " |")
            named = "| |"
    table = "\n".join(lines)
    print(table)
    if args.markdown:
        args.markdown.write_text(table + "\n")
    return int(any(result != "same" for _, _, result, _ in results))


if __name__ == "__main__":
    sys.exit(main())
