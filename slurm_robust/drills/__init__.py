"""Drills: the owner of a job has a fault planted in it, and sees whether it recovers as promised."""
