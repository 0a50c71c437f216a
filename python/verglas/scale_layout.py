"""Scales of blocks in plain order and in atoms of 128 rows by 4 columns, and fp4 in pairs.

The interleaved order is the one that graphs call ``F8_128x4``: docs/numerics.md, "Block scales", has a picture. Functions take
arrays of NumPy, torch or JAX, whose elements are one byte each, and answer arrays of the same kind; fp4 is packed with NumPy.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

ATOM_ROWS, ATOM_COLUMNS = 128, 4

_FP4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def padded_shape(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of whole atoms: the extents that a graph may declare for interleaved scales.

    Examples
    --------
    >>> padded_shape(200, 6)
    (256, 8)
    """
    if rows < 0 or columns < 0:
        raise ValueError(f"scales: got {rows} rows and {columns} columns, wanted none below 0")
    return -(-rows // ATOM_ROWS) * ATOM_ROWS, -(-columns // ATOM_COLUMNS) * ATOM_COLUMNS


def grouped_rows(rows: int, groups: int) -> int:
    """Rows of whole atoms that any groups of so many rows take, where the rows of each begin an atom.

    Examples
    --------
    >>> grouped_rows(200, 3), grouped_rows(2, 8)
    (512, 256)
    """
    if rows < 0 or groups < 0:
        raise ValueError(f"scales of groups: got {rows} rows and {groups} groups, wanted none below 0")
    some = min(rows, groups)
    return ATOM_ROWS * (some + (rows - some) // ATOM_ROWS) if some else 0


def interleave(scales: Any, group_offsets: Any = None, end: bool = False) -> Any:
    """Plain scales (..., rows, columns) as atoms, padding 0; the answer has the extents of `padded_shape`.

    Rows are those of A (M) or of B (N); a column is a block of K. Scales of B in the order of a graph, (K/v, N), are transposed
    first.

    group_offsets: of a grouped product, numbers on the host as the product reads them (`end`: the rows behind each group). The
    rows of each group begin an atom then, the answer has `grouped_rows`, and scales of rows without a group are left out.

    Examples
    --------
    >>> import numpy as np
    >>> blob = interleave(np.arange(6, dtype=np.uint8).reshape(3, 2))
    >>> blob.shape, blob.reshape(-1)[[0, 1, 16, 17, 32, 33]].tolist()
    ((128, 4), [0, 1, 2, 3, 4, 5])
    """
    if len(_bytes(scales).shape) < 2:
        raise ValueError(f"plain scales have rows and columns: got shape {tuple(scales.shape)}, wanted two axes or more")
    *batch, rows, columns = scales.shape
    if group_offsets is not None:
        scales = _in_groups(scales, group_offsets, end)
        rows = scales.shape[-2]
    high, wide = padded_shape(rows, columns)
    atoms = _padded(scales, high, wide).reshape(*batch, high // 128, 4, 32, wide // 4, 4)
    n = len(batch)
    return _permuted(atoms, (*range(n), n, n + 3, n + 2, n + 1, n + 4)).reshape(*batch, high, wide)


def plain(blob: Any, rows: int, columns: int, batches: int | None = None, group_offsets: Any = None, end: bool = False) -> Any:
    """The scales of a blob in plain order, (rows, columns), or (batches, rows, columns) where their number is given.

    A blob is a run of whole atoms in any shape, or what operations answer: atoms with their axes in cuDNN's order.
    group_offsets, end: as `interleave` takes them; the blob is one of all groups, with spare atoms or not, and scales of rows
    without a group are 0.

    Examples
    --------
    >>> import numpy as np
    >>> scales = np.arange(130 * 5).reshape(130, 5).astype(np.uint8)
    >>> np.array_equal(plain(interleave(scales), 130, 5), scales)
    True
    """
    if group_offsets is not None:
        if batches is not None:
            raise ValueError(f"scales of groups: got {batches} batches, wanted none")
        return _from_groups(blob, rows, columns, group_offsets, end)
    high, wide = padded_shape(rows, columns)
    count = 1 if batches is None else batches
    if len(_bytes(blob).shape) == 6 and blob.shape[3] == 4:  # (32, 4, R', 4, K', L), as operations answer them
        blob = _permuted(blob, (5, 2, 4, 0, 1, 3))
    flat = blob.reshape(-1)
    if count < 0 or flat.shape[0] != count * high * wide:
        wanted = f"{max(count, 0)} times {high} · {wide}"
        raise ValueError(f"interleaved scales are whole atoms of 128 rows by 4: got {flat.shape[0]} bytes, wanted {wanted}")
    atoms = flat.reshape(count, high // 128, wide // 4, 32, 4, 4)
    found = _permuted(atoms, (0, 1, 4, 3, 2, 5)).reshape(count, high, wide)[:, :rows, :columns]
    return found[0] if batches is None else found


def pack_fp4(values: Any) -> Any:
    """Numbers (..., n), n even, as bytes of two fp4 each, (..., n / 2).

    To nearest, ties to even, saturating at 6; the even element in the low half.

    Examples
    --------
    >>> import numpy as np
    >>> pack_fp4(np.array([1.0, -6.0, 0.3, 100.0])).tolist()
    [242, 113]
    """
    import numpy as np

    v = np.asarray(values, np.float64)
    if v.ndim == 0 or v.shape[-1] % 2 != 0:
        raise ValueError(f"fp4 is packed in pairs along the last axis: got shape {v.shape}, wanted an even last extent")
    size = np.abs(v)
    # Half-way numbers go to the even code: upwards from an odd one only.
    codes = sum((size >= m) if i % 2 else (size > m) for i, m in enumerate(_FP4_MIDDLES)).astype(np.uint8)
    codes = np.where(np.isnan(v), 7, codes | np.where(np.signbit(v), 8, 0)).astype(np.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_fp4(packed: Any) -> Any:
    """The numbers of packed fp4, float32 (..., 2 n).

    Examples
    --------
    >>> import numpy as np
    >>> unpack_fp4(np.array([242, 113], np.uint8)).tolist()
    [1.0, -6.0, 0.5, 6.0]
    """
    import numpy as np

    table = np.array([*_FP4_VALUES, *(-v for v in _FP4_VALUES)], np.float32)
    packed = _bytes(packed)
    if str(packed.dtype) == "torch.float4_e2m1fn_x2":  # NumPy has no such type
        packed = packed.view(sys.modules["torch"].uint8)
    bytes_ = np.asarray(packed).view(np.uint8)
    return np.stack([table[bytes_ & 15], table[bytes_ >> 4]], -1).reshape(*bytes_.shape[:-1], -1)


def _bounds(group_offsets: Any, rows: int, end: bool) -> list[int]:
    offsets = [int(o) for o in (group_offsets.reshape(-1) if hasattr(group_offsets, "reshape") else group_offsets)]
    bounds = [0, *offsets] if end else [*offsets, rows]
    if any(a > b for a, b in itertools.pairwise(bounds)) or bounds[0] < 0 or bounds[-1] > rows:
        raise ValueError(f"group_offsets: got {offsets}, wanted numbers that do not fall, from 0 to {rows}")
    return bounds


def _places(bounds: list[int]) -> list[tuple[int, int, int]]:
    """Of each group its first row, the one behind its last, and its first row in atoms."""
    places, at = [], 0
    for first, last in itertools.pairwise(bounds):
        places.append((first, last, at))
        at += -(-(last - first) // ATOM_ROWS) * ATOM_ROWS
    return places


def _in_groups(scales: Any, group_offsets: Any, end: bool) -> Any:
    rows, columns = scales.shape[-2:]
    bounds = _bounds(group_offsets, rows, end)
    whole = _padded(scales[..., :0, :], grouped_rows(rows, len(bounds) - 1), columns)
    for first, last, at in _places(bounds):
        whole = _with_rows(whole, at, scales[..., first:last, :])
    return whole


def _from_groups(blob: Any, rows: int, columns: int, group_offsets: Any, end: bool) -> Any:
    bounds = _bounds(group_offsets, rows, end)
    wide = padded_shape(0, columns)[1]
    flat = _bytes(blob).reshape(-1)
    least = grouped_rows(rows, len(bounds) - 1)
    if flat.shape[0] < least * wide:
        raise ValueError(f"interleaved scales of groups: got {flat.shape[0]} bytes, wanted {least} · {wide} or more")
    all_rows = plain(flat[: least * wide], least, columns)
    found = _padded(all_rows[:0], rows, columns)
    for first, last, at in _places(bounds):
        found = _with_rows(found, first, all_rows[at : at + last - first])
    return found


def _with_rows(whole: Any, at: int, rows: Any) -> Any:
    if type(whole).__module__.startswith("jax"):
        return whole.at[..., at : at + rows.shape[-2], :].set(rows)
    whole[..., at : at + rows.shape[-2], :] = rows
    return whole


def _bytes(array: Any) -> Any:
    size = getattr(getattr(array, "dtype", None), "itemsize", None)
    if size != 1:
        got = type(array).__name__ if size is None else f"elements of {size} bytes"
        raise ValueError(f"scales and packed fp4 are arrays of NumPy, torch or JAX: got {got}, wanted elements of one byte")
    return array


def _permuted(array: Any, axes: tuple[int, ...]) -> Any:
    return array.permute(axes) if hasattr(array, "permute") else array.transpose(axes)


def _padded(array: Any, rows: int, columns: int) -> Any:
    *batch, high, wide = array.shape
    if (high, wide) == (rows, columns):
        return array
    shape = (*batch, rows, columns)
    if type(array).__module__.startswith("jax"):
        import jax.numpy as jnp

        return jnp.zeros(shape, array.dtype).at[..., :high, :wide].set(array)
    if hasattr(array, "new_zeros"):
        whole = array.new_zeros(shape)
    else:
        import numpy as np

        whole = np.zeros(shape, array.dtype)
    whole[..., :high, :wide] = array
    return whole
