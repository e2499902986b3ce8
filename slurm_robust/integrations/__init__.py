"""The two lines for trainers that own the training loop: ``transformers.Trainer`` and Lightning.

Nothing is imported here, so that neither framework is needed for the other.
"""
