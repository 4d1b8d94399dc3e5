"""What differs between languages: how functions are found, changed and taken out."""
