"""What a person reads about a job or a training: status, report, page, logs, the live screen.

What the controller shares with it stands in :mod:`slurm_robust.evidence`, and how a job is found in
:mod:`slurm_robust.trainings`. Commands print through :mod:`slurm_robust.terminal.console`.
"""
