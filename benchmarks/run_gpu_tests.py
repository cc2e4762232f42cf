"""Run the tests on a GPU and record how they went.

    python3 benchmarks/run_gpu_tests.py cpp --tests build/tests_cpp/test_attention_cuda build/tests_cpp/test_rotary_cuda
    python3 benchmarks/run_gpu_tests.py python --workers 8
    python3 benchmarks/run_gpu_tests.py python --workers 8 --family simt
    python3 benchmarks/run_gpu_tests.py sanitizer --workers 16 --tests build/tests_cpp/test_*_cuda
    python3 benchmarks/run_gpu_tests.py ptx --tests build-ptx/tests_cpp/test_attention_cuda
    python3 benchmarks/run_gpu_tests.py cpp python sanitizer --workers 8 --deadline 570 --tests build/tests_cpp/*_cuda

Every part adds its suites to --out, replacing those of the same name and family; suites of other sources
(--source-hash) are dropped. cpp and python are the C++ and Python tests; --family forces a kernel family
(DLATTN_KERNEL). --workers: processes at a time. sanitizer runs some C++ tests under compute-sanitizer, where every
error counts as a failure. ptx runs C++ tests with the PTX of the binary instead of its machine code, as a newer GPU
would.

What a suite prints stands in --logs. The exit status is 1 if anything failed, did not finish or ran nothing.
"""

import argparse
import datetime
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Under a sanitizer a kernel is 10 to 100 times slower. Every tool runs these, which reach every operation, every row of
# the kernel table (tests_cpp/ops/small_cases.h), and what wrong lengths, positions and slots do.
SANITIZER_CASES = "Small/*:*Outside*:Ptx*:CallsCudaTest.*-*Graph*:*SeveralCallers*:*OrderOfStreams*"
# memcheck, the fastest, runs so many of an executable: the others are taken evenly from all that are not large.
MEMCHECK_COUNT = 40
MEMCHECK_CASES = "*-Large/*:Many*:Wide/*:Groups/*:Rows/*:*Rules*:CallsCudaTest.*:*DeathTest*"
CASES_OF_A_PROCESS = 4  # or more: what a process takes to start is worth a few


def run(name, command, options, environment=None):
    """(exit status or None if it ran out of time, what it printed)."""
    start = time.monotonic()
    log = options.logs / (re.sub(r"[^A-Za-z0-9.]+", "_", name) + ".txt")
    with log.open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(max(0.0, min(options.timeout, options.end - start)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        output.seek(0)
        text = output.read()
    print(
        f"{name}: {'out of time' if status is None else f'exit {status}'}, {time.monotonic() - start:.0f} s", flush=True
    )
    if status != 0:
        print("\n".join(text.splitlines()[-40:]), flush=True)
    return status, text


def suite(name, family, passed=0, failed=0, skipped=0):
    return {"name": name, "family": family, "passed": passed, "failed": failed, "skipped": skipped}


def googletest_counts(path):
    """(passed, failed, skipped) of a report; nothing if the program did not come to write one."""
    if not path.exists() or path.stat().st_size == 0:
        return 0, 0, 0
    passed = failed = skipped = 0
    for group in json.loads(path.read_text())["testsuites"]:
        for case in group["testsuite"]:
            if case.get("failures"):
                failed += 1
            elif case.get("result") == "SKIPPED" or case.get("status") == "NOTRUN":
                skipped += 1
            else:
                passed += 1
    return passed, failed, skipped


def googletest(name, family, executable, options, arguments, environment=None, before=()):
    """One executable of GoogleTest as a suite. before: a command that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *before,
            str(Path(executable).resolve()),
            "--gtest_brief=1",
            f"--gtest_output=json:{report}",
            *arguments,
        ]
        status, text = run(name, command, options, environment)
        passed, failed, skipped = googletest_counts(report)
    if status != 0 and failed == 0:
        failed = 1  # it crashed, ran out of time, or a sanitizer found something
    if before:
        errors = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ", text)
        failed = max([failed, *map(int, errors)]) if errors else max(failed, 1)  # without one nothing was watched
    return suite(name, family, passed, failed, skipped)


def submit_shards(pool, name, family, executable, pattern, count, options, environment, before=()):
    """Start the `count` tests that a filter lets through as several processes; their suites are to come."""
    shards = max(1, min(options.workers, count // CASES_OF_A_PROCESS))
    return [
        pool.submit(
            googletest,
            f"{name}.{shard}",
            family,
            executable,
            options,
            [f"--gtest_filter={pattern}"],
            {**environment, "GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)},
            before,
        )
        for shard in range(shards)
    ]


def joined(name, family, parts):
    """The suite of what submit_shards() started."""
    results = [part.result() for part in parts]
    return suite(name, family, *(sum(r[key] for r in results) for key in ("passed", "failed", "skipped")))


def googletests(prefix, family, options, environment):
    pattern = options.filter or "*"
    with ThreadPoolExecutor(options.workers) as pool:
        for executable in options.tests:
            name, count = f"{prefix}.{Path(executable).name}", len(names_of(executable, pattern))
            parts = submit_shards(pool, name, family, executable, pattern, count, options, environment)
            yield joined(name, family, parts)


def cpp(options):
    environment = {"DLATTN_REQUIRE_GPU": "1"}
    if options.family:
        environment["DLATTN_KERNEL"] = options.family
    yield from googletests("cpp", options.family or "all", options, environment)


def ptx(options):
    yield from googletests("ptx", "all", options, {"DLATTN_REQUIRE_GPU": "1", "CUDA_FORCE_PTX_JIT": "1"})


def names_of(executable, pattern):
    """The tests of an executable that a filter lets through."""
    listing = output_of(str(Path(executable).resolve()), "--gtest_list_tests", f"--gtest_filter={pattern}")
    names, group = [], ""
    for line in listing.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith(" "):
            names.append(group + name)
        else:
            group = name
    return names


def sanitizer_cases(executable, tool, options):
    """The tests of an executable that a tool runs."""
    names = names_of(executable, options.filter or SANITIZER_CASES)
    if options.filter or tool != "memcheck":
        return names
    others = [name for name in names_of(executable, MEMCHECK_CASES) if name not in names]
    count = min(len(others), max(0, MEMCHECK_COUNT - len(names)))
    return names + [others[i * len(others) // count] for i in range(count)]


def sanitizer(options):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(program).exists():
        print("there is no compute-sanitizer in PATH or /usr/local/cuda", flush=True)
        yield suite("sanitizer", "all", failed=1)
        return
    with ThreadPoolExecutor(options.workers) as pool:
        suites = []
        for tool in options.tools:
            before = [program, "--tool", tool, "--error-exitcode", "86", "--print-limit", "20"]
            for executable in options.tests:
                names = sanitizer_cases(executable, tool, options)
                name = f"{tool}.{Path(executable).name}"
                arguments = ":".join(names), len(names), options, {"DLATTN_REQUIRE_GPU": "1"}, before
                suites.append((name, submit_shards(pool, name, "all", executable, *arguments)))
        for name, parts in suites:
            yield joined(name, "all", parts)


def python(options):
    environment = {"DLATTN_KERNEL": options.family} if options.family else {}
    name, family = "python", options.family or "all"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--device=cuda",
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",  # a plugin that warns under xdist, which the tests take for an error
        ]
        command += ["-n", str(options.workers)] if options.workers > 1 else []
        status, _ = run(f"{name}.{family}", [*command, *options.pytest], options, environment)
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        if report.exists():
            for element in ElementTree.parse(report).getroot().iter("testsuite"):
                for key in counts:
                    counts[key] += int(element.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    yield suite(name, family, passed, failed or int(status != 0), counts["skipped"])


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine():
    """What the results were made on."""
    query = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    gpu, _, driver = (query[0] if query else ", ").partition(", ")
    release = re.search(r"release ([0-9.]+)", output_of("nvcc", "--version"))
    cuda = release.group(1) if release else ""
    if not cuda:
        found = re.search(r"CUDA Version: ([0-9.]+)", output_of("nvidia-smi"))
        cuda = found.group(1) if found else "unknown"
    return {"gpu": gpu, "driver": driver, "cuda": cuda, "date": datetime.date.today().isoformat()}


def merge(path, source_hash, suites):
    """Add suites to the record at `path`; several runners may do so at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (Path(tempfile.gettempdir()) / f"dlattn_{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merge_locked(path, source_hash, suites)


def merge_locked(path, source_hash, suites):
    old = json.loads(path.read_text()) if path.exists() else {}
    kept = old.get("suites", []) if old.get("source_hash") == source_hash else []
    fresh = {(s["name"], s["family"]) for s in suites}
    kept = [s for s in kept if (s["name"], s["family"]) not in fresh]
    record = {"source_hash": source_hash, **machine(), "suites": kept + suites}
    record["suites"].sort(key=lambda s: (s["name"], s["family"]))
    path.write_text(json.dumps(record, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="+", choices=["cpp", "python", "sanitizer", "ptx"], help="one after the other")
    parser.add_argument("--tests", nargs="+", default=[], metavar="EXECUTABLE", help="of GoogleTest")
    parser.add_argument("--filter", default="", help="of GoogleTest (default for sanitizer: some)")
    parser.add_argument("--tools", nargs="+", default=TOOLS, choices=TOOLS)
    parser.add_argument("--family", default="", choices=["", "simt", "mma", "wgmma"], help="force a kernel family")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes at a time (of pytest: needs pytest-xdist)",
    )
    parser.add_argument("--pytest", nargs="*", default=["tests_py"], metavar="ARGUMENT", help="files, -k ...")
    parser.add_argument("--timeout", type=float, default=570, help="seconds for each process")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds for everything")
    parser.add_argument("--source-hash", required=True, help="of the sources that were built")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/gpu_tests.json")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "dlattn_gpu_tests")
    options = parser.parse_args()
    if options.part != ["python"] and not options.tests:
        parser.error("--tests is missing")
    options.logs.mkdir(parents=True, exist_ok=True)
    options.end = time.monotonic() + options.deadline
    bad = 0
    for part in options.part:
        for result in {"cpp": cpp, "python": python, "sanitizer": sanitizer, "ptx": ptx}[part](options):
            merge(options.out, options.source_hash, [result])  # after each, in case the next does not end
            print(result, flush=True)
            bad += result["failed"] + (result["passed"] == 0)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
