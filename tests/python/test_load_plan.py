"""Plans that were compiled ahead of time, from a path or from bytes; what a GPU does with them is tested where there is one."""

import pathlib

import pytest
import verglas


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_file_that_is_not_there(kind, tmp_path):
    with pytest.raises(verglas.IoError) as caught:
        verglas.load_plan(kind(tmp_path / "none.vgp"))
    assert caught.value.rule == "file.open"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_that_are_no_plan(kind, device):
    """With a device or without one: what is wrong with the bytes comes first."""
    for text in (b"", b"{}", b"\x89VERGLAS"):
        with pytest.raises(verglas.Error) as caught:
            verglas.load_plan(kind(text), device=device)
        assert caught.value.rule in ("file.plan_format", "file.plan_damaged"), text


def test_a_path_as_bytes_is_no_path(tmp_path):
    path = tmp_path / "plan.vgp"
    path.write_bytes(b"{}")
    with pytest.raises(verglas.Error) as caught:
        verglas.load_plan(str(path).encode(), device="cpu")  # bytes are the file itself
    assert caught.value.rule == "file.plan_format" and caught.value.operand == "plan"


@pytest.mark.parametrize("source", [None, 3, 1.5, ["plan.vgp"]])
def test_anything_else_is_a_type_error(source):
    with pytest.raises(TypeError):
        verglas.load_plan(source)


def test_the_device_is_named_as_a_graph_names_it():
    with pytest.raises(verglas.InvalidGraphError, match=r"graph.device"):
        verglas.load_plan(b"{}", device="gpu")
