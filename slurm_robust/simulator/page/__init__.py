"""The lives of a simulated job as one HTML page that needs nothing else."""
