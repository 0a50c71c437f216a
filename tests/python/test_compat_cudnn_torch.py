"""The scripts of test_gpu_compat_cudnn.py on the CPU, with torch's tensors."""

import pytest
import verglas.compat.cudnn as cudnn
from support import lacking

try:
    from cudnn_scripts import SCRIPTS
except ImportError:
    lacking("torch", "torch is not installed", module=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_script(script, monkeypatch):
    monkeypatch.setattr(cudnn, "_default_device", lambda: "cpu")  # also where torch sees a GPU
    script(cudnn, "cpu")
