"""tiny.py, and the file clock.NODE with the time by the node's clock."""

import os
import time
from pathlib import Path

Path(f"clock.{os.environ['SLURMD_NODENAME']}").write_text(f"{time.time()}")

import tiny  # noqa: E402, F401 - trains
