"""What training steps are made of, and whether they give what they should."""
