"""`python -m dlattn info`: what was built and what this machine can do."""

import argparse
import platform

import dlattn


def info_lines() -> list[tuple[str, str]]:
    """(what, its value) of everything that a report of a fault should say."""
    info = dlattn.info()
    lines = [("dlattn", info["version"]), ("python", f"{platform.python_version()} ({platform.platform()})")]
    if info["cuda_compiled"]:
        driver = f"driver for {info['cuda_driver']}" if info["cuda_driver"] else "no driver"
        lines += [
            ("cuda", f"runtime {info['cuda_runtime'] or 'unknown'}, {driver}"),
            ("cuda devices", ", ".join(info["cuda_devices"]) or "none"),
            ("cuda architectures", " ".join(info["cuda_architectures"])),
            ("cuda families", " ".join(info["cuda_families"])),
            ("cuda kernels", "\n".join(info["cuda_kernels"])),
        ]
    else:
        lines.append(("cuda", "not built; with nvcc: pip install . --config-settings=cmake.define.DLATTN_CUDA=ON"))
    lines.append(("cpu", f"{info['cpu_isa']} (of {', '.join(info['cpu_isas'])}), {info['num_threads']} threads"))
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m dlattn", description="Attention and rotary embeddings.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="print versions, devices and kernels")
    parser.parse_args()
    for what, value in info_lines():
        indented = value.replace("\n", "\n" + " " * 20)
        print(f"{what:<20}{indented}")


if __name__ == "__main__":
    main()
