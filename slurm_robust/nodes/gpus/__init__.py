"""GPUs of every vendor: their facts, and what judges them."""
