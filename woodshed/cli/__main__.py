"""``python -m woodshed.cli``."""

from .main import app

app()
