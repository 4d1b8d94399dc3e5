"""Tasks that exist: rated, refreshed, counted, shown, handed to others and brought back."""
