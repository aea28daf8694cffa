"""Mixed precision: autocast, gradient scaling, weights in half precision."""
