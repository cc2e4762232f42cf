"""Signatures of the extension module's functions, and what is wrong with arguments that do not fit one."""

import inspect
from typing import Any

from . import _core


def signature(name: str) -> inspect.Signature:
    """The signature of dlattn._core.<name>."""
    # ('def name(a: object | None, *, b: object | None = \\0) -> object', docstring, (the default called \\0, ...))
    text, _doc, defaults = getattr(_core, name).__nb_signature__[0]
    parameters = []
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for part in text[text.index("(") + 1 : text.rindex(") ->")].split(", "):
        if not part:
            continue
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        default = defaults[int(part.rpartition("= \\")[2])] if "= \\" in part else inspect.Parameter.empty
        parameters.append(inspect.Parameter(part.partition(":")[0], kind, default=default))
    return inspect.Signature(parameters)


def raise_mismatch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise the TypeError of a call of dlattn._core.<name> whose arguments do not fit its signature."""
    try:
        signature(name).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    raise TypeError(f"{name}: the arguments do not fit {name}{signature(name)}")
