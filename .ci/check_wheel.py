"""Checks what a wheel holds: usage check_wheel.py WHEEL."""

import re
import sys
import zipfile
from pathlib import Path

REQUIRED = [
    "dlattn/__init__.py",
    "dlattn/py.typed",
    "dlattn/_core.abi3.so",
    "dlattn/include/dlattn/dlattn.h",
    "dlattn/include/dlattn/version.h",
    "dlattn/lib/libdlattn.a",
    "dlattn/lib/cmake/dlattn/dlattn-config.cmake",
    "dlattn/lib/cmake/dlattn/dlattn-targets.cmake",
]
MAX_BYTES = 10_000_000


def main(path):
    wheel = zipfile.ZipFile(path)
    names = wheel.namelist()
    findings = [f"{name} is missing" for name in REQUIRED if name not in names]
    findings += [f"{name} does not belong here" for name in names if not re.match(r"dlattn(-[^/]*\.dist-info)?/", name)]
    if "-cp310-abi3-" not in path.name:
        findings.append(f"{path.name} is not tagged cp310-abi3")
    if path.stat().st_size > MAX_BYTES:
        findings.append(f"{path.stat().st_size} bytes, at most {MAX_BYTES}")
    metadata = wheel.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    required = [line for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M) if "extra ==" not in line]
    if any(not line.startswith("nanobind-backend") for line in required):
        findings.append(f"import needs {required}, expected nanobind-backend only")
    print(
        "\n".join(findings) if findings else f"{path.name}: {len(names)} files, {path.stat().st_size} bytes, complete"
    )
    return len(findings)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
