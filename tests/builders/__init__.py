"""What tests build, one module per noun."""
