"""``python -m slurm_robust.cli`` is ``srobust`` where no script directory is on the PATH."""

from __future__ import annotations

import sys

from slurm_robust.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
