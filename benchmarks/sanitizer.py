#!/usr/bin/env python3
"""What NVIDIA's compute-sanitizer finds of the broken kernels in the zoo (tests/src/zoo.rs), on a GPU.

Each mutant runs its case alone and under each tool; a table says which of them notice. Needs no Rust: the zoo's
program and the mutants' PTX come with the bundle (`cargo xtask bundle`). A call ends after --seconds, and the next
one goes on where it stopped; the table is printed in any case, and says how much is left.

    python3 sanitizer.py --markdown table.md
    python3 sanitizer.py --only backward_bf16_d128_sm90a --tools racecheck
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
ALONE = "alone"
HANGS = "hangs"
SUMMARY = re.compile(r"========= (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
HEADERS = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "Target application returned", " ")


def arguments():
    here = Path(__file__).resolve().parent
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--bundle", type=Path, default=here, help="the folder with mutants.tar.xz")
    add("--sanitizer", default=None, help="compute-sanitizer, if it is not on the PATH")
    add("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    add("--only", default="", help="mutants whose file has this in its name")
    add("--device", help="in place of the device of each mutant")
    add("--timeout", type=float, default=20, help="seconds for one run: mutants may hang")
    add("--hanging", type=float, default=8, help="seconds under a tool for a mutant that hangs alone")
    add("--seconds", type=float, default=90, help="no run starts after these")
    add("--jobs", type=int, default=12, help="runs at a time")
    add("--results", type=Path, default=Path("sanitizer.json"), help="what is known so far")
    add("--markdown", type=Path, help="write the table here too")
    return parser.parse_args()


def find_sanitizer(given):
    places = [given, shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"]
    return next((str(place) for place in places if place and Path(place).exists()), None)


def mutants(bundle, only):
    """Dictionaries of file, kernel, device, name, and what the emulator finds."""
    folder = bundle / "mutants"
    if not (folder / "mutants.tsv").exists():
        with tarfile.open(bundle / "mutants.tar.xz") as archive:
            archive.extractall(bundle)
    columns = ("file", "kernel", "device", "name", "emulator")
    lines = (folder / "mutants.tsv").read_text().splitlines()
    rows = [dict(zip(columns, line.split("\t"))) for line in lines]
    return [row | {"path": folder / row["file"]} for row in rows if only in row["file"]]


def run(command, timeout):
    """Exit code (None if it hung) and output."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def first_report(output):
    """The first line that a tool reports, without addresses; nothing if there is none."""
    for line in output.splitlines():
        text = line.removeprefix("========= ")
        if line.startswith("========= ") and text.strip() and not text.startswith(HEADERS):
            return re.sub(r" at (address )?0x[0-9a-f]+|\+0x[0-9a-f]+| in block .*", "", text).strip()
    return ""


def judged(tool, code, output):
    """What one run says: `found`, and a text."""
    if tool == ALONE:
        last = (output.strip().splitlines() or [""])[-1][:120]
        return {"found": code != 0, "text": HANGS if code is None else last if code else ""}
    counts = [int(a or b) for a, b in SUMMARY.findall(output)]
    report = first_report(output)
    if code is None:
        return {"found": bool(report), "text": report or HANGS}
    if not counts:
        return {"found": False, "text": "the tool failed: " + output.strip()[-200:]}
    return {"found": counts[0] > 0, "text": report if counts[0] else ""}


def command(options, sanitizer, mutant, tool):
    zoo = [str(options.bundle / "mutants" / "zoo"), "run", str(mutant["path"]), options.device or mutant["device"]]
    if tool == ALONE:
        return zoo
    # Errors of the driver are how a fault shows without a tool as well.
    return [sanitizer, "--tool", tool, "--report-api-errors", "no", "--print-limit", "3", *zoo]


def run_all(options, sanitizer, rows, results):
    """Runs what has no result yet; returns how many are left."""
    started, lock = time.monotonic(), Lock()
    work = [(row, tool) for tool in (ALONE, *options.tools) for row in rows]
    todo = [(row, tool) for row, tool in work if tool not in results.get(row["file"], {})]

    def one(row, tool):
        if time.monotonic() - started > options.seconds:
            return
        hangs = results.get(row["file"], {}).get(ALONE, {}).get("text") == HANGS
        seconds = options.hanging if hangs else options.timeout
        code, output = run(command(options, sanitizer, row, tool), seconds)
        with lock:
            results.setdefault(row["file"], {})[tool] = judged(tool, code, output)
            options.results.write_text(json.dumps(results, indent=1))

    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, row, tool) for row, tool in todo]:
            done.result()
    return sum(tool not in results.get(row["file"], {}) for row, tool in work)


def cell(result):
    if result is None:
        return "?"
    if result["found"]:
        return result["text"] or "found"
    return f"({result['text']})" if result["text"] else ""


def table(options, rows, results):
    """What each tool finds. It can only count for a kernel that was run as it ships, of which it reports nothing."""
    columns = (ALONE, *options.tools)
    of = {row["file"]: results.get(row["file"], {}) for row in rows}
    broken = [row for row in rows if row["name"] != "as it ships"]
    healthy = [row for row in rows if row["name"] == "as it ships"]
    found = lambda row, tool: of[row["file"]].get(tool, {}).get("found", False)
    silent = {(row["kernel"], tool) for row in healthy for tool in options.tools if not found(row, tool)}
    counts = lambda row, tool: found(row, tool) and (tool == ALONE or (row["kernel"], tool) in silent)
    lines = ["| of the mutants | found | kernels that ship and are reported too |", "|--|--|--|"]
    lines.append(f"| the emulator | {sum(row['emulator'] != 'nothing' for row in broken)} of {len(broken)} | 0 |")
    for tool in columns:
        known = [row for row in broken if tool in of[row["file"]]]
        name = "the GPU alone: wrong, faulty or hanging" if tool == ALONE else tool
        reported = sum(found(row, tool) for row in healthy)
        lines.append(f"| {name} | {sum(counts(row, tool) for row in known)} of {len(known)} | {reported} of {len(healthy)} |")
    seen = sum(any(counts(row, tool) for tool in options.tools) for row in broken)
    reported = sum(any(found(row, tool) for tool in options.tools) for row in healthy)
    lines.append(f"| any of the tools | {seen} of {len(broken)} | {reported} of {len(healthy)} |")
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        lines += ["", f"## {kernel}", "", "| mutant | emulator | " + " | ".join(columns) + " |"]
        lines.append("|--" * (len(columns) + 2) + "|")
        for row in (row for row in rows if row["kernel"] == kernel):
            cells = [row["name"], row["emulator"], *(cell(of[row["file"]].get(tool)) for tool in columns)]
            lines.append("| " + " | ".join(text.replace("|", "/") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    sanitizer = find_sanitizer(options.sanitizer)
    if sanitizer is None:
        raise SystemExit("compute-sanitizer is not here: --sanitizer PATH")
    rows = mutants(options.bundle, options.only)
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    left = run_all(options, sanitizer, rows, results)
    text = table(options, rows, results)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    print(f"{left} runs are left: call again" if left else "all is done")
    raise SystemExit(1 if left else 0)


if __name__ == "__main__":
    main()
