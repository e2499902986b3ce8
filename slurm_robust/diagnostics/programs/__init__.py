"""The tests, a module each with ``run(part) -> Measurement``. A new one also needs a line in ``PROGRAMS``.

``run`` is called in a process of its own which ends after it, so what it changes in that process goes with
it. It raises :class:`~slurm_robust.diagnostics.part.NotHere` if there is nothing to be tested; any other
exception is a failure.
"""
