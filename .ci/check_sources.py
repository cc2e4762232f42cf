"""Rules of CONTRIBUTING.md that a program can check. The exit status is the number of findings."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 600

# (what may not be there, in which files, why)
FORBIDDEN = [
    (r"#include.*(cuda|nanobind|torch|Python\.h|dlpack)", r"^cpp/include/", "public headers need plain C++17 only"),
    (r"\b(asm|__asm__|__CUDA_ARCH\w*)\b", r"^cpp/src/(?!cuda/ptx/)", "instructions and architectures live in cuda/ptx"),
    (r"#include \"(cpu|cuda|no_cuda)/", r"^cpp/src/core/", "core sees backends through backend.h"),
    (r"#include.*cuda", r"^cpp/src/(core|cpu|no_cuda)/|^python/src/", "only cpp/src/cuda knows CUDA"),
    (r"\b(exit|abort|printf|cerr|cout)\b", r"^(cpp/src|python/src)/", "the library neither prints nor exits"),
    (
        r"\bGLOB|CMAKE_(CXX|CUDA)_FLAGS|^ *(include|link)_directories\(",
        r"^(cpp|python|cmake)/.*(CMakeLists\.txt|\.cmake)$",
        "sources are listed, flags belong to targets",
    ),
]


def tracked_files():
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    return [name for name in listing.stdout.decode().splitlines() if (ROOT / name).is_file()]


def main():
    findings = []
    for name in tracked_files():
        if not re.search(r"\.(h|cuh|cu|cpp|py|cmake|in|toml|json|md)$|CMakeLists\.txt$", name):
            continue
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES and not name.startswith("benchmarks/results/"):
            findings.append(f"{name}: {len(lines)} lines, at most {MAX_LINES}")
        for pattern, files, why in FORBIDDEN:
            if not re.search(files, name):
                continue
            for number, line in enumerate(lines, 1):
                code = line.split("//")[0].split("#  ")[0]
                if re.search(pattern, code):
                    findings.append(f"{name}:{number}: {line.strip()}  ({why})")
    example = (ROOT / "tests_cpp/install/find_package/main.cpp").read_text(encoding="utf-8")
    if example not in (ROOT / "README.md").read_text(encoding="utf-8"):
        findings.append("README.md: its C++ example is not tests_cpp/install/find_package/main.cpp")
    print("\n".join(findings) if findings else "sources: no findings")
    return min(len(findings), 100)


if __name__ == "__main__":
    sys.exit(main())
