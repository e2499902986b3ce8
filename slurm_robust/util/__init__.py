"""What every part of the package may use: it imports nothing of the package."""
