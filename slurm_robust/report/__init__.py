"""All that a person reads about a job.

``incidents``, ``incident_text``, ``stacks``, ``ettr`` and ``bundle`` are for the controller too and print nothing.
The other modules are commands, which print through ``console``.
"""
