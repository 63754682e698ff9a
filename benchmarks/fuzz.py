#!/usr/bin/env python3
"""What the command makes of broken files, with no GPU: mutated texts of PTX, and mutated safetensors.

A file that is right is changed in one to three places. The command must then end by itself, within --seconds and
--gigabytes, with an exit code of its own: 0, 1 if it found something, 2 for a file that it refuses. A panic, a signal or
another code is a failure, whose file stays in --work. The same --seed makes the same files.

    python3 fuzz.py --fattn target/release/fattn --ptx FOLDER --tensors examples/data
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", re.S)
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+[\w$]+(?:\[(\d+)\])?")
THREADS = re.compile(r"\.(?:req|max)ntid\s+(\d+)")
TOKEN = re.compile(rb"[A-Za-z0-9_.$%]+")
NUMBERS = (b"0", b"1", b"-1", b"63", b"4294967295", b"18446744073709551615", b"9" * 40, b"0x", b"0f7FC00000", b"1e999")
BYTES_OF_BUFFER = 1 << 16


def arguments():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--fattn", type=Path, required=True)
    add("--ptx", type=Path, help="a folder of texts; without it none are mutated")
    add("--tensors", type=Path, help="a folder of safetensors; without it none are mutated")
    add("--texts", type=int, default=2000, help="mutated texts")
    add("--files", type=int, default=1000, help="mutated safetensors")
    add("--seed", type=int, default=0)
    add("--seconds", type=float, default=20)
    add("--gigabytes", type=float, default=4)
    add("--jobs", type=int, default=os.cpu_count())
    add("--work", type=Path, default=Path("fuzz-work"), help="a folder for files that fail")
    return parser.parse_args()


def mutated(data, rng):
    """`data` with one to three changes."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(MUTATIONS)(data, rng)
    return bytes(data)


def flip(data, rng):
    """One bit is another one."""
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data, rng):
    """The end is missing."""
    del data[rng.randint(0, len(data)) :]


def remove(data, rng):
    """A few bytes are missing."""
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, 16)]


def insert(data, rng):
    """There are a few bytes more."""
    at = rng.randint(0, len(data))
    data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))


def change_lines(data, rng):
    """A line is missing, there twice, or elsewhere."""
    lines = bytes(data).splitlines(keepends=True)
    if len(lines) < 2:
        return
    line = lines[rng.randrange(len(lines))]
    how = rng.randrange(3)
    if how != 1:
        lines.remove(line)
    if how != 0:
        lines.insert(rng.randint(0, len(lines)), line)
    data[:] = b"".join(lines)


def change_token(data, rng):
    """A word is another one of the file."""
    tokens = list(TOKEN.finditer(data[: 1 << 16]))
    if len(tokens) >= 2:
        old, new = rng.choice(tokens), rng.choice(tokens)
        data[old.start() : old.end()] = new.group()


def change_number(data, rng):
    """A number is one that is seldom right."""
    numbers = list(re.finditer(rb"\d+", data[: 1 << 16]))
    if numbers:
        old = rng.choice(numbers)
        data[old.start() : old.end()] = rng.choice(NUMBERS)


MUTATIONS = (flip, cut, remove, insert, change_lines, change_lines, change_token, change_token, change_number, change_number)


def launch_of(text):
    """How `fattn sanitize` is told of the first kernel of a text that is right."""
    name, parameters = ENTRY.search(text).groups()
    options = ["--entry", name]
    for kind, size in PARAMETER.findall(parameters):
        if size:
            options += ["--arg", "bytes:" + "00" * int(size)]
        elif kind in ("u64", "b64", "s64"):
            options += ["--arg", f"buf:u8:{BYTES_OF_BUFFER}:random:1"]
        else:
            number = {"b": "u", "s": "i"}.get(kind[0], kind[0])
            options += ["--arg", f"{number}{kind[1:]}:1"]
    threads = THREADS.search(text)
    return [*options, "--block", threads[1] if threads else "32", "--shared", "49152", "--schedules", "2"]


@dataclass
class Ended:
    """How a run of the command ended."""

    code: int
    seconds: float
    gigabytes: float
    said: str

    def failure(self, seconds, gigabytes):
        """What is wrong with that, if anything."""
        if self.seconds > seconds:
            return f"took {self.seconds:.1f} s"
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if "panicked" in self.said:
            return "panicked"
        if self.gigabytes > gigabytes:
            return f"took {self.gigabytes:.1f} GB"
        return None


def run(command, seconds):
    """Runs a command, at most so long."""
    with tempfile.TemporaryFile() as said:
        started = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        killer = threading.Timer(seconds + 1, process.kill)
        killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    return Ended(process.returncode, time.monotonic() - started, usage.ru_maxrss / 1e6, text)


def cases(args):
    """Each file's name and bytes, and the command for its path."""
    rng = random.Random(args.seed)
    texts = sorted(args.ptx.glob("*.ptx")) if args.ptx else []
    texts = [path for path in texts if ENTRY.search(path.read_text(errors="replace"))]
    for number in range(args.texts if texts else 0):
        data = rng.choice(texts).read_bytes()
        options = launch_of(data.decode(errors="replace"))
        yield f"{number}.ptx", mutated(data, rng), ["sanitize", *options, "--ptx"]
    files = sorted(args.tensors.glob("*.safetensors")) if args.tensors else []
    written = args.work / "written.safetensors"
    commands = (["run", "--output", written], ["trace-nonfinite"], ["msda", "--output", written])
    for number in range(args.files if files else 0):
        data = rng.choice(files).read_bytes()
        # Mostly the header: of the elements, all that can change are numbers.
        end = 8 + int.from_bytes(data[:8], "little")
        if rng.randrange(8):
            header = mutated(data[8:end], rng)
            length = rng.choice((len(header), len(header), len(header), end - 8))
            data = length.to_bytes(8, "little") + header + data[end:]
        else:
            data = mutated(data, rng)
        device = ["--device", "emulated:sm_80"]
        yield f"{number}.safetensors", data, [*rng.choice(commands), *device, "--input"]


def main():
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)

    def check(case):
        name, data, command = case
        path = args.work / name
        path.write_bytes(data)
        ended = run([args.fattn, *command, path], args.seconds)
        failure = ended.failure(args.seconds, args.gigabytes)
        if failure is None:
            path.unlink()
        return ended, failure and f"{name}: {failure}: fattn {' '.join(map(str, command))} {path}"

    codes, failures, slowest, largest = {}, [], 0.0, 0.0
    with ThreadPoolExecutor(args.jobs) as pool:
        for ended, failure in pool.map(check, cases(args)):
            codes[ended.code] = codes.get(ended.code, 0) + 1
            slowest, largest = max(slowest, ended.seconds), max(largest, ended.gigabytes)
            if failure:
                failures.append(failure)
                print(failure, flush=True)
    of_codes = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    print(f"{sum(codes.values())} files: {of_codes}; at most {slowest:.1f} s and {largest:.2f} GB; {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
