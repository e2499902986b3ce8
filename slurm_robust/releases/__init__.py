"""Copies of a job's code: taken, named, unpacked and compared."""
