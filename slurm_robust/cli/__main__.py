"""``srobust``, also as ``python -m slurm_robust.cli`` if no script directory is on the PATH."""

from __future__ import annotations

import sys


def program() -> int:
    """Run one command; returns the exit code. Ctrl-C ends it without a traceback also while it is loaded."""
    try:
        from slurm_robust.cli.main import main
        from slurm_robust.util.standard_files import open_standard_files

        open_standard_files()
        return main()
    except KeyboardInterrupt:
        print("srobust: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(program())
