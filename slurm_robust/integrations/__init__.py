"""For frameworks that own the loop (``transformers.Trainer``, Lightning) or the state (DeepSpeed, Megatron).

Nothing is imported here, so that no framework is needed for another.
"""
