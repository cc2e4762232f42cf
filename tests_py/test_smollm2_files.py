"""The example and model files that it cannot read: a message that names the file, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

for module in ("gguf", "jinja2", "tokenizers"):
    pytest.importorskip(module)

EXAMPLE = Path(__file__).parents[1] / "examples" / "smollm2"


@pytest.mark.parametrize("content", [b"", b"text", b"GGUF\x03\0\0\0" + bytes(40), "cut"], ids=repr)
def test_a_bad_file_is_named(content, tmp_path):
    path = tmp_path / "model.gguf"
    if content == "cut":
        sys.path.insert(0, str(EXAMPLE))
        try:
            from gguf_weights import default_path

            with open(default_path(), "rb") as whole:
                content = whole.read(100_000)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        finally:
            sys.path.remove(str(EXAMPLE))
    path.write_bytes(content)
    command = [sys.executable, str(EXAMPLE), "--prompt", "a", "--model", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert result.stdout == ""
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr
