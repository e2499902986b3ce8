"""Everything that a person reads about a job.

The controller also uses ``incidents``, ``incident_text``, ``stacks``, ``ettr`` and ``bundle``, which print
nothing. The other modules are commands, which print through ``console``.
"""
