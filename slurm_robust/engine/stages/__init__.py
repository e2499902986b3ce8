"""The stages of a job's life, one class each; docs/design.md, section 9, draws how they follow each other."""
