"""All that a person reads about a job.

The controller uses ``incidents``, ``incident_text``, ``stacks``, ``ettr`` and ``bundle`` as well, which print
nothing. The other modules are commands, which print through ``console``.
"""
