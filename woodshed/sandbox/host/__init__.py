"""What runs outside the boxes, whichever backend makes them."""
