"""What operations answer: outputs by name, by place, and as a tuple."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class TupleDict(dict):
    """Named outputs in their documented order.

    ``r["c_tensor"]``, ``r.c_tensor`` and ``r[1]`` are the same output; iterating and unpacking give the values, while ``keys``,
    ``items`` and ``in`` are those of a dict. An output that was not produced keeps its place and is ``None``. One that is set is
    set for all three ways.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.values())

    def __reversed__(self) -> Iterator[Any]:  # type: ignore[override]
        return reversed(self.values())

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, int):
            if not 0 <= key < len(self):
                raise IndexError(f"output {key} of {len(self)}")
            return list(self.values())[key]
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError:
            raise self._lacks(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self:
            raise self._lacks(name)
        self[name] = value

    def copy(self) -> TupleDict:
        return TupleDict(self)

    def _lacks(self, name: str) -> AttributeError:
        return AttributeError(f"no output {name}; there are {', '.join(self.keys())}")

    def __repr__(self) -> str:
        return f"TupleDict({', '.join(f'{k}={v!r}' for k, v in self.items())})"
