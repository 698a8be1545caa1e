"""What to run: every option (settings.py) and one small file per experiment."""
