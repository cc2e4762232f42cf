"""What the README shows of Python works. (.ci/check_sources.py compares its C++ program with the one under test.)"""

import re
from pathlib import Path

import dlattn

ROOT = Path(__file__).parents[1]


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_python_snippet_runs():
    (snippet,) = code_blocks("python")
    names = {}
    exec(snippet, names)
    assert names["out"].shape == names["q"].shape
    assert names["lse"].shape == (1, 32, 1024)


def test_functions_of_the_table_exist():
    functions = set(
        re.findall(r"`(\w+)\(", re.search(r"\| function \|.*?\n\n", (ROOT / "README.md").read_text(), re.S)[0])
    )
    assert len(functions) >= 14
    assert not [name for name in functions if not callable(getattr(dlattn, name, None))]
