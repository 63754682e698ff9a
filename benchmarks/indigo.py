#!/usr/bin/env python3
"""What `fattn sanitize` finds of the 590 kernels of the Indigo suite as HiRace's SC24 artifact has them, with no GPU.

The artifact is https://github.com/JohnJacobsonIII/HiRace-Artifact-SC24; nvcc comes from PyPI (nvidia-cuda-nvcc,
nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime, nvidia-cuda-cccl). Which kernels race, and which go beyond the end of
a buffer, their names say. Each runs on six graphs in a few shapes under a few schedules; the table says of how many a
race is found, per graph and on any of them.

    python3 indigo.py --artifact HiRace-Artifact-SC24 --nvcc nvidia/cu13/bin/nvcc --fattn target/release/fattn
"""

import argparse
import json
import re
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RACY = re.compile("atomicBug|guardBug|syncBug|raceBug")
BEYOND = re.compile("boundsBug")
# Blocks and threads. There are as many blocks as vertices: of one warp, of two, and of one thread, which race more often.
SHAPES = ((256, 32), (256, 64), (256, 1))
KERNELS_PER_TEXT = 24


def rand_of_glibc():
    """What `rand` gives one after the other, with which the programs of the suite fill their arrays."""
    state = [1]
    for _ in range(30):
        state.append(16807 * state[-1] % 0x7FFFFFFF)
    state += state[:3]
    while True:
        state.append((state[-31] + state[-3]) & 0xFFFFFFFF)
        if len(state) > 344:
            yield state[-1] >> 1


def arguments():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--artifact", type=Path, required=True, help="a checkout of the artifact")
    add("--nvcc", type=Path, required=True)
    add("--fattn", type=Path, required=True)
    add("--work", type=Path, default=Path("indigo-work"), help="a folder for texts and results")
    add("--arch", default="sm_80")
    add("--nvcc-options", default="-lineinfo -w", help="-G for what nvcc makes for debuggers")
    add("--jobs", type=int, default=2)
    add("--schedules", type=int, default=4)
    add("--only", default="", help="kernels with this in their name")
    add("--graphs", default="", help="graphs with this in their name")
    add("--markdown", type=Path, help="where to write the table")
    return parser.parse_args()


def kernel_of(source):
    """The device code of a source: what stands between the header and the code of the host."""
    text = source.read_text()
    start = text.index('#include "indigo_cuda.h"') + len('#include "indigo_cuda.h"')
    code = text[start : text.index("void serial_code")]
    typedef = re.search(r"typedef .*? data_t;", text).group(0)
    return f"namespace {source.stem} {{\n{typedef}\n{code}\n}}\n"


def compiled(options, sources):
    """Text and name of each kernel in it: {kernel: (path, entry)}."""
    folder = options.work / ("debug" if "-G" in options.nvcc_options else "plain")
    folder.mkdir(parents=True, exist_ok=True)
    groups = [sources[i : i + KERNELS_PER_TEXT] for i in range(0, len(sources), KERNELS_PER_TEXT)]

    def compile_group(number):
        ptx = folder / f"{number}.ptx"
        if not ptx.exists():
            code = folder / f"{number}.cu"
            code.write_text("".join(kernel_of(source) for source in groups[number]))
            command = [options.nvcc, "-ptx", f"-arch={options.arch}", *options.nvcc_options.split()]
            subprocess.run([*command, "-o", ptx, code], check=True)
        entries = re.findall(r"\.entry (\w+)", ptx.read_text())
        found = {}
        for source in groups[number]:
            mangled = f"_ZN{len(source.stem)}{source.stem}11test_kernel"
            found[source.stem] = (ptx, next(entry for entry in entries if entry.startswith(mangled)))
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        parts = list(pool.map(compile_group, range(len(groups))))
    return {name: place for part in parts for name, place in part.items()}


def inputs_of(options, graph):
    """The arguments of a graph: its index and its edges, two arrays of data, and how many vertices there are."""
    raw = graph.read_bytes()
    nodes, edges = struct.unpack_from("<2i", raw)
    numbers = struct.unpack_from(f"<{nodes + 1 + edges}i", raw, 8)
    draw, size = rand_of_glibc(), max(nodes, edges, 1)
    arrays = {
        "nindex": numbers[: nodes + 1],
        "nlist": numbers[nodes + 1 :] or (0,),
        "data1": (0, *(next(draw) % nodes for _ in range(size - 1))),
        "data2": (0, *(next(draw) % max(edges, 1) for _ in range(size - 1))),
    }
    given = []
    for name, values in arrays.items():
        path = options.work / f"{graph.stem}.{name}"
        path.write_bytes(struct.pack(f"<{len(values)}i", *values))
        given += ["--arg", f"file:{path},name={name},dtype=i32"]
    return [*given, "--arg", f"i32:{nodes}"]


def kinds(options, place, given):
    """The kinds of errors that are found, in any shape."""
    ptx, entry = place
    found = set()
    for blocks, threads in SHAPES:
        command = [options.fattn, "sanitize", "--ptx", ptx, "--entry", entry, "--json", "--any-order"]
        command += ["--grid", str(blocks), "--block", str(threads), "--schedules", str(options.schedules)]
        ran = subprocess.run([*command, *given], capture_output=True, text=True)
        if ran.returncode not in (0, 1):
            sys.exit(f"{entry}: {ran.stderr}")
        findings = json.loads(ran.stdout)["findings"]
        found |= {finding["kind"] for finding in findings if finding["severity"] == "error"}
    return found


def main():
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    sources = sorted((options.artifact / "indigo" / "indigo_sources").glob("*/*.cu"))
    sources = [source for source in sources if options.only in source.stem]
    graphs = sorted((options.artifact / "indigo" / "input").glob("*.egr"))
    graphs = [graph for graph in graphs if options.graphs in graph.stem]
    places = compiled(options, sources)
    is_racy = {name: bool(RACY.search(name)) for name in places}
    counts = Counter(is_racy.values())
    rows, flagged, others = [], set(), defaultdict(set)
    for graph in graphs:
        given = inputs_of(options, graph)
        with ThreadPoolExecutor(options.jobs) as pool:
            found = dict(zip(places, pool.map(lambda name: kinds(options, places[name], given), places)))
        racing = {name for name, kinds in found.items() if any("race in" in kind for kind in kinds)}
        for name, of_kernel in found.items():
            others[name] |= of_kernel
        flagged |= racing
        right = sum(is_racy[name] for name in racing)
        rows.append((graph.stem, right, len(racing) - right))
        print(rows[-1], flush=True)
    right = {name for name in flagged if is_racy[name]}
    rows.append(("any of them", len(right), len(flagged - right)))
    lines = [f"| graph | racy, of {counts[True]} | race-free, of {counts[False]} |", "| --- | --- | --- |"]
    lines += [f"| {graph} | {found} | {wrong} |" for graph, found, wrong in rows]
    beyond = {name for name, kinds in others.items() if any("out-of-bounds" in kind for kind in kinds)}
    named = {name for name in places if BEYOND.search(name)}
    lines.append("")
    lines.append(
        f"Out of bounds: {len(beyond & named)} of {len(named)} whose names say so, {len(beyond - named)} of the others."
    )
    print("\n".join(lines))
    missed = sorted(name for name in places if is_racy[name] and name not in flagged)
    for title, names in (("missed", missed), ("wrong", sorted(flagged - right)), ("beyond", sorted(beyond - named))):
        if names:
            print(f"{title}: {', '.join(names)}")
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
