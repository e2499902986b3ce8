"""``srobust doctor``: what in the environment of a job will hurt its recovery, and how to mend it."""
