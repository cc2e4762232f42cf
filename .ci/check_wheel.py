"""Checks what a wheel holds: usage check_wheel.py WHEEL [--cuda]. With --cuda, kernels have to be in it."""

import re
import subprocess
import sys
import tempfile
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
MAX_BYTES = 24_000_000  # with three architectures; more than half is -lineinfo
# What the module may link: glibc and the C++ runtime. The CUDA runtime is inside, and loads the driver if there is one.
SYSTEM_LIBRARIES = r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-.*)\.so\.\d+"


def check_module(module, want_cuda):
    """Findings in the extension module: what it links, and whether kernels are in it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(module)
        file.flush()
        readelf = subprocess.run(["readelf", "-dWS", file.name], check=True, capture_output=True, text=True).stdout
    libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf)
    findings = [f"_core links {name}" for name in libraries if not re.fullmatch(SYSTEM_LIBRARIES, name)]
    if not libraries:
        findings.append("readelf names no library that _core links")
    if want_cuda and ".nv_fatbin" not in readelf:
        findings.append("_core holds no CUDA kernels")
    return findings


def main(path, want_cuda):
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
    findings += check_module(wheel.read("dlattn/_core.abi3.so"), want_cuda)
    for name in ("dlattn/_core.abi3.so", "dlattn/lib/libdlattn.a"):
        entry = wheel.getinfo(name)
        print(f"{name}: {entry.file_size} bytes, {entry.compress_size} in the wheel")
    print(
        "\n".join(findings) if findings else f"{path.name}: {len(names)} files, {path.stat().st_size} bytes, complete"
    )
    return len(findings)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--cuda" in sys.argv[2:]))
