"""The nodes: their checks, the ``hooks`` that Slurm calls as root, the ``live`` inspection beside a job.

:mod:`.check` says what a check is, :mod:`.checks` has them all, :mod:`.registry` lists them, :mod:`.runner`
runs them, and :mod:`.verdict` judges the node by a run. :mod:`.gpus` and :mod:`.kernel` are parts of checks.
"""
