"""The command line: a table of contents. Each command is a module that registers its options."""
