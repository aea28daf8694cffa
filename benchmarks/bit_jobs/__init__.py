"""Jobs that write down, bit by bit, what they leave; `bit_identity.py` runs them."""
