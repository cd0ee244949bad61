"""Functions of the user's own, by names under which every node finds them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def _name(value: Any) -> Any:
    """``module:function`` of a function; a name is left as it is."""
    if not callable(value):
        return value
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not name or "<" in name or module in ("", "__main__"):
        what = f"{name or value!r} of {module or 'no module'} cannot be found by name on a node: "
        fix = "write a function at the top level of a file in the job's folder"
        raise ValueError(what + fix)
    return f"{module}:{name}"


Named = Annotated[str, BeforeValidator(_name), Field(pattern=r"^[\w.]+:[\w.]+$")]
"""A function by its name, ``module:function``; may be given as the function itself."""
