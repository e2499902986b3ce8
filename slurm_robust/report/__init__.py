"""What people look at: status, drills. Reads the journal; asks Slurm only for what Slurm knows."""
