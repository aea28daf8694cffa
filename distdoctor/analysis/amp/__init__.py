"""Mixed precision: gradient scaling, overflows, weights in half precision."""
