"""Tasks that exist: rated, renewed, counted, shown, handed to others and brought back."""
