"""The report on a job as one HTML page that needs nothing else."""
