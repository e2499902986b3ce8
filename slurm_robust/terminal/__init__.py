"""What all commands share to write to a terminal."""
