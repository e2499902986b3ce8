"""Configuration of jobs and nodes: schemas, one YAML reader, one documented precedence.

To add a key, add a field with its type, default and documentation to a section of
:mod:`slurm_robust.config.job` or :mod:`slurm_robust.config.node`; what no type can express goes to
``contradictions`` of the section. Then run ``python -m slurm_robust.config.reference docs/configuration.md
docs/node-configuration.md``.
"""
