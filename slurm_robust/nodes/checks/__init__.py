"""The checks, one module for each thing that is looked at."""
