"""Data: tokenizers, batches, and one folder per dataset with its prepare.py."""
