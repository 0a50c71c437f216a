"""Scripts in cuDNN's style on a real GPU; test_compat_cudnn.py has their like for NumPy's arrays."""

import os

import pytest
import verglas.compat.cudnn as cudnn

torch = pytest.importorskip("torch") if "torch" not in os.environ.get("VERGLAS_REQUIRE", "") else __import__("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    if "gpu" in os.environ.get("VERGLAS_REQUIRE", ""):
        raise RuntimeError("VERGLAS_REQUIRE names gpu, and torch sees no Hopper device")
    pytest.skip("torch sees no device of compute capability 9.0", allow_module_level=True)

from cudnn_scripts import SCRIPTS  # noqa: E402


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_script(script):
    script(cudnn, "cuda")
