"""Before JAX is imported: a few devices of the host, for the tests of programs over several."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
