"""Configuration of jobs and nodes: schemas, one YAML reader, one documented precedence."""
