"""Configuration: dataclasses, a YAML reader, one documented precedence."""
