"""What Prometheus reads of jobs and nodes: the table of all metrics, and their text.

Light to import: hooks and the controller use it.
"""
