"""The fleet: what happened to all jobs of a site, in one index. docs/fleet.md is for administrators.

Summaries of jobs come from a spool (``collect``), are clamped to what Slurm says (``accept``, pure), and go
into a database (``index``, with SQLAlchemy), which ``queries`` asks. What others may import without
SQLAlchemy: ``summarise``, ``accept``, ``answers``, ``spool``, and ``opening``, which imports the rest on
demand.
"""
